// Samples random rows in every way, by one thread and by several, for `tools.check_native`: ends
// with the first fault of a sanitizer, or token that depends on the number of threads.

#include <cstdio>
#include <cstdlib>
#include <random>

#include "thread_pool.h"
#include "sampling.h"

using namespace tandem;

namespace {

std::mt19937 generator;

template <class T, int kCount>
T any_of_these(const T (&values)[kCount]) {
  return values[generator() % kCount];
}

[[noreturn]] void fail(const char* what) {
  std::puts(what);
  std::abort();
}

// Logits of all kinds: equal ones, far ones, hidden ones, and some NaNs.
void fill(float* row, int64_t vocab) {
  std::normal_distribution<float> normal;
  const float spread = any_of_these({0.0f, 1.0f, 3.0f, 12.0f, 60.0f, 1e30f});
  const int kind = generator() % 6;
  for (int64_t at = 0; at < vocab; ++at) {
    row[at] = normal(generator) * spread;
    if (kind == 1) row[at] = std::round(row[at]);
    if (kind == 2 && generator() % 100) row[at] = -kInfinity;
  }
  if (kind == 3) row[generator() % vocab] = any_of_these({__builtin_nanf(""), kInfinity});
}

// Sampling parameters of a row, with token ids that need not be in the vocabulary.
struct RandomRow {
  std::vector<int64_t> ids[3];
  std::vector<float> values[2];
  SampledRow row = {};

  explicit RandomRow(int64_t vocab) {
    for (auto& list : ids) {
      const int count = generator() % 4 == 0 ? generator() % 9 : 0;
      for (int at = 0; at < count; ++at) list.push_back(int64_t(generator() % (vocab + 2)) - 1);
    }
    values[0].assign(ids[0].size(), 1.5f);
    values[1].assign(ids[1].size(), float(generator() % 3));
    row.temperature = any_of_these({0.0, 1e-5, 0.1, 1.0, 3.0, 100.0});
    row.margin = generator() % 3 ? -HUGE_VAL : -double(generator() % 5) * row.temperature;
    row.top_p = any_of_these({1.0, 1.0, 1e-6, 0.5, 0.9, 0.999});
    row.top_k = any_of_these<int64_t>({0, 0, 1, 2, 20, 50, 400, 3000, 1000000000});
    row.seed = generator();
    row.position = generator() % 100;
    row.num_logprobs = any_of_these<int64_t>({-1, -1, 0, 1, 20});
    row.repetition = 1.1, row.frequency = 0.3, row.presence = 0.2;
    row.biased = ids[0].data(), row.biases = values[0].data(), row.num_biased = ids[0].size();
    row.seen = ids[1].data(), row.counts = values[1].data(), row.num_seen = ids[1].size();
    row.banned = ids[2].data(), row.num_banned = ids[2].size();
  }
};

std::vector<int64_t> tokens_of(const std::vector<SampledRow>& rows, std::vector<float> logits,
                               int threads) {
  const int64_t count = rows.size(), vocab = logits.size() / count;
  const int64_t max_top = std::min<int64_t>(20, vocab);
  const std::vector<float> before = logits;
  std::vector<int64_t> tokens(count, vocab), top_ids(count * max_top);
  std::vector<float> logprobs(count), top_logprobs(count * max_top);
  std::vector<float> workspaces(threads * RowWorkspace::num_floats(vocab));
  const Sampling step{logits.data(),       rows.data(),       count,   vocab,
                      tokens.data(),       logprobs.data(),   max_top, top_ids.data(),
                      top_logprobs.data(), workspaces.data(), threads};
  SharedPool::of_process().set(threads, {});
  RowWorkspace shared(vocab, workspaces.data());
  std::atomic<int64_t> arrived{0};
  run_in_pool(int64_t{1} << 40,
              [&](WorkerContext& worker) { sample(worker, step, shared, arrived); });
  if (std::memcmp(logits.data(), before.data(), before.size() * sizeof(float))) {
    fail("the logits are not as they were");
  }
  return tokens;
}

void check(int64_t count, int64_t vocab) {
  std::vector<float> logits(count * vocab);
  std::vector<RandomRow> made;
  std::vector<SampledRow> rows;
  made.reserve(count);
  for (int64_t row = 0; row < count; ++row) {
    fill(&logits[row * vocab], vocab);
    rows.push_back(made.emplace_back(vocab).row);
  }
  const std::vector<int64_t> alone = tokens_of(rows, logits, 1);
  for (const int64_t token : alone) {
    if (token < -1 || token >= vocab) fail("this is no token");
  }
  for (const int threads : {2, 3, 5}) {
    if (tokens_of(rows, logits, threads) != alone) fail("threads change the tokens");
  }
}

}  // namespace

int main() {
  for (int round = 0; round < 100; ++round) {
    check(1 + generator() % 7, any_of_these<int64_t>({1, 2, 15, 16, 17, 511, 512, 513, 700, 1023,
                                                      1025, 1087, 1600, 4096, 5000, 20001}));
  }
}
