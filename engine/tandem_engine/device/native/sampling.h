// One token a row, drawn or the likeliest, with log-probabilities where they are asked for.
//
// Rows have nothing to do with each other. Where there are more of them than threads, each thread
// takes one after another, whose logits then stay in its cache; threads share out the blocks of
// the last ones. Either way a row is a number of parts, and what one part has found is written
// down at a desk before the next begins: a worker that lost its core decides nothing.
//
// The number that draws comes from (seed, position) alone, and is looked up among the cumulated
// weights in the order of the vocabulary. Those of a block are summed up first, so that in the end
// one block is looked at logit by logit.

#pragma once

#include <atomic>
#include <numeric>
#include <utility>

#include "sampling_sample.h"

namespace tandem {

// The step: tokens and log-probabilities are written, and logits are as before in the end.
struct Sampling {
  float* logits;  // [rows, vocab]
  const SampledRow* asked;
  int64_t rows, vocab;
  int64_t* tokens;   // [rows]; -1: the logits are no numbers
  float* logprobs;   // [rows]: of the tokens
  int64_t most;      // room for the likeliest of each row
  int64_t* top_ids;  // [rows, most], the likeliest first
  float* top_logprobs;
  float* room;  // [desks * Desk::room]
  int64_t desks;
};

// SplitMix64's finaliser: see chance.py.
inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A number in [0, 1) for a seed and a position.
inline double uniform(uint64_t seed, int64_t position) {
  const uint64_t step = (static_cast<uint64_t>(position) + 1) * 0x9E3779B97F4A7C15u;
  return static_cast<double>(mix64(mix64(seed) + step) >> 11) * 0x1p-53;
}

// Bias, then penalties, then what is barred; in double precision, rounded once, as the reference.
class Change {
 public:
  Change(const SampledRow& row, float* logits, int64_t vocab, std::vector<float>& before)
      : row_(row), logits_(logits), vocab_(vocab), before_(before) {}

  void make() {
    before_.clear();
    before_.reserve(row_.num_biased + row_.num_seen + row_.num_barred);
    for (int64_t at = 0; at < row_.num_biased; ++at) {
      change(row_.biased[at], [&](float x) { return x + row_.biases[at]; });
    }
    for (int64_t at = 0; at < row_.num_seen; ++at) {
      change(row_.seen[at], [&](float x) { return penalised(x, row_.counts[at]); });
    }
    for (int64_t at = 0; at < row_.num_barred; ++at) {
      change(row_.barred[at], [](float) { return -kInfinity; });
    }
  }

  // From the last to the first: a logit may have been changed twice.
  void undo() {
    const std::pair<const int64_t*, int64_t> lists[] = {{row_.barred, row_.num_barred},
                                                        {row_.seen, row_.num_seen},
                                                        {row_.biased, row_.num_biased}};
    for (const auto& [ids, count] : lists) {
      for (int64_t at = count - 1; at >= 0; --at) {
        if (!is_token(ids[at])) continue;
        logits_[ids[at]] = before_.back();
        before_.pop_back();
      }
    }
  }

 private:
  const SampledRow& row_;
  float* const logits_;
  const int64_t vocab_;
  std::vector<float>& before_;

  bool is_token(int64_t id) const { return id >= 0 && id < vocab_; }

  template <class Rule>
  void change(int64_t id, Rule&& rule) {
    if (!is_token(id)) return;
    before_.push_back(logits_[id]);
    logits_[id] = rule(logits_[id]);
  }

  float penalised(float logit, float count) const {
    double x = logit;
    x = x > 0 ? x / row_.repetition : x * row_.repetition;
    x -= row_.frequency * count;
    if (count > 0) x -= row_.presence;
    return static_cast<float>(x);
  }
};

// Looks for the token of one row, alone or with others.
class RowSampling {
 public:
  RowSampling(const Sampling& step, int64_t number, WorkerContext& worker, Desk& desk)
      : step_(step),
        number_(number),
        row_(step.asked[number]),
        logits_(step.logits + number * step.vocab),
        top_k_(row_.top_k > 0 && row_.top_k < step.vocab ? row_.top_k : 0),
        worker_(worker),
        desk_(desk) {}

  void operator()() {
    if (shows_logprobs()) find_top();
    if (row_.is_changed()) alone([&] { change().make(); });
    if (row_.is_changed() || !shows_logprobs()) look(row_.temperature, draws_of_all());
    if (row_.is_greedy()) {
      alone([&] { finish(desk_.has_failed ? -1 : likeliest()); });
      return;
    }
    alone([&] { desk_.floor = floor_of_margin(); });
    if (top_k_ > 0) {
      gather_likeliest(top_k_);
    } else if (!is_weighed()) {
      weigh_blocks(row_.temperature);
    }
    if (top_k_ == 0 && row_.top_p < 1.0) gather_around_mass();
    alone([&] { finish(desk_.has_failed ? -1 : is_cut() ? drawn_of_cut() : drawn_of_all()); });
  }

 private:
  const Sampling& step_;
  const int64_t number_;
  const SampledRow& row_;
  float* const logits_;
  const int64_t top_k_;
  WorkerContext& worker_;
  Desk& desk_;

  static constexpr int64_t kAtOnce = 8;  // blocks

  bool shows_logprobs() const { return row_.num_logprobs >= 0; }
  bool has_margin() const { return row_.margin > -HUGE_VAL; }
  bool is_cut() const { return top_k_ > 0 || row_.top_p < 1.0; }

  // Whether all blocks are weighed that are looked at, whatever the largest logit of all is.
  bool draws_of_all() const { return !row_.is_greedy() && top_k_ == 0 && !has_margin(); }

  // Whether the blocks have the masses of the draw already; those of the log-probabilities will do.
  bool is_weighed() const {
    return draws_of_all() &&
           (!shows_logprobs() || row_.is_changed() || row_.temperature == 1.0);
  }

  const float* block_at(int64_t block) const { return logits_ + block * kBlock; }
  Change change() { return Change(row_, logits_, desk_.vocab, desk_.before); }
  Weigher weigher() const { return Weigher(desk_.best, row_.temperature); }

  // Calls body() in one worker, while the others wait.
  template <class Body>
  void alone(Body&& body) {
    for (const int64_t one : worker_.each(1)) {
      (void)one;
      body();
    }
  }

  // Calls body(begin, end) for runs of blocks that make up all, in all workers.
  template <class Body>
  void each_run(Body&& body) {
    for (const int64_t run : worker_.each((desk_.blocks + kAtOnce - 1) / kAtOnce)) {
      body(run * kAtOnce, std::min(desk_.blocks, (run + 1) * kAtOnce));
    }
  }

  // Calls body(block) for all blocks, in all workers.
  template <class Body>
  void each_block(Body&& body) {
    each_run([&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) body(block);
    });
  }

  // Finds the largest logits, and what the blocks weigh if that is asked for: while they come from
  // memory, there is time for it. A block is weighed beside its own largest, for lack of another.
  void look(double temperature, bool weighs) {
    each_block([&](int64_t block) {
      bool is_wrong = false;
      const float peak = peak_of(block_at(block), desk_.length(block), is_wrong);
      desk_.peaks[block] = peak;
      desk_.wrongs[block] = is_wrong;
      if (!weighs) return;
      const bool is_finite = !is_wrong && peak >= kLowest;
      desk_.masses[block] =
          is_finite ? mass_of(block_at(block), desk_.length(block), Weigher(peak, temperature)) : 0;
    });
    alone([&] {
      find_best();
      if (weighs && !desk_.has_failed) rescale_masses(temperature);
    });
  }

  void find_best() {
    desk_.best = -kInfinity;
    bool is_wrong = false;
    for (int64_t block = 0; block < desk_.blocks; ++block) {
      desk_.best = std::max(desk_.best, desk_.peaks[block]);
      is_wrong |= desk_.wrongs[block];
    }
    desk_.has_failed = is_wrong || !std::isfinite(desk_.best);
  }

  // From beside a block's own largest logit to beside the largest of all.
  void rescale_masses(double temperature) {
    const Weigher weigh(desk_.best, temperature);
    int64_t block = 0;
    for (; block + kLanes <= desk_.blocks; block += kLanes) {
      store(desk_.masses + block, load(desk_.masses + block) * weigh(load(desk_.peaks + block)));
    }
    for (; block < desk_.blocks; ++block) {
      desk_.masses[block] *= static_cast<float>(weigh.of(desk_.peaks[block]));
    }
  }

  int64_t likeliest() const {
    const float* peak = std::find(desk_.peaks, desk_.peaks + desk_.blocks, desk_.best);
    const float* found = block_at(peak - desk_.peaks);
    while (*found != desk_.best) ++found;
    return found - logits_;
  }

  // What is below it min_p leaves out; -inf never stays.
  float floor_of_margin() const {
    return std::max(kLowest, static_cast<float>(desk_.best + row_.margin));
  }

  void weigh_blocks(double temperature) {
    each_block([&](int64_t block) {
      if (desk_.has_failed) return;
      const Weigher weigh(desk_.best, temperature);
      const bool has_any = desk_.peaks[block] >= desk_.floor;
      desk_.masses[block] =
          has_any ? mass_of(block_at(block), desk_.length(block), weigh, desk_.floor) : 0;
    });
  }

  // Gathers at least `count` of the largest, as far as there are so many.
  void gather_likeliest(int64_t count) {
    alone([&] {
      desk_.cut_in = {kLowest, kInfinity};
      if (!desk_.has_failed) desk_.around = {least_of_likeliest(count), kInfinity};
    });
    gather_blocks([&] { return !desk_.has_failed; });
    if (count <= desk_.blocks) return;
    alone([&] {
      desk_.is_short = !desk_.has_failed && count_gathered() < count;
      desk_.around.low = desk_.floor;
    });
    gather_blocks([&] { return desk_.is_short; });
  }

  // In as many blocks the largest is not below the last of the `count` largest. Where there are
  // not as many, a sample tells; it may be wrong.
  float least_of_likeliest(int64_t count) {
    if (count > desk_.blocks) return std::max(desk_.floor, Sample(desk_, logits_).least_of(count));
    float* last = desk_.spare + count - 1;
    std::copy(desk_.peaks, desk_.peaks + desk_.blocks, desk_.spare);
    std::nth_element(desk_.spare, last, desk_.spare + desk_.blocks, std::greater<float>());
    return std::max(desk_.floor, *last);
  }

  template <class IsWanted>
  void gather_blocks(IsWanted&& is_wanted) {
    each_run([&](int64_t begin, int64_t end) {
      if (!is_wanted()) return;
      int64_t start = begin * kBlock;
      for (int64_t block = begin; block < end; ++block) {
        int64_t found = 0;
        if (desk_.peaks[block] >= desk_.around.low) {
          found = gather(block_at(block), desk_.length(block), desk_.around.low,
                         desk_.around.high, desk_.gathered + start);
        }
        desk_.starts[block] = static_cast<int32_t>(start);
        desk_.counts[block] = static_cast<int32_t>(found);
        start += found;
      }
    });
  }

  int64_t count_gathered() const {
    return std::accumulate(desk_.counts, desk_.counts + desk_.blocks, int64_t{0});
  }

  // Gathers those among which the mass of top_p is reached, of blocks that are weighed.
  void gather_around_mass() {
    alone([&] {
      if (desk_.has_failed) return;
      Sample(desk_, logits_).set_steps(weigher(), row_.top_p);
      desk_.around = {desk_.steps[kSteps - 1], kInfinity};
    });
    gather_blocks([&] { return !desk_.has_failed; });
    each_run([&](int64_t begin, int64_t end) {
      if (desk_.has_failed) return;
      masses_of(gathered_of(begin), count_gathered(begin, end), weigher(), desk_.steps,
                desk_.above + begin * kSteps);
    });
    alone([&] {
      if (!desk_.has_failed) bracket_mass();
    });
    gather_blocks([&] { return !desk_.has_failed && desk_.is_short; });
  }

  // Finds where the cut is; what was gathered has it in it, unless the sample was wrong.
  void bracket_mass() {
    double total = 0, above[kSteps] = {};
    for (int64_t block = 0; block < desk_.blocks; ++block) total += desk_.masses[block];
    for (int64_t begin = 0; begin < desk_.blocks; begin += kAtOnce) {
      for (int step = 0; step < kSteps; ++step) above[step] += desk_.above[begin * kSteps + step];
    }
    int step = 0;
    while (step < kSteps && above[step] < row_.top_p * total) ++step;
    desk_.cut_in = {step < kSteps ? desk_.steps[step] : desk_.floor,
                    step > 0 ? desk_.steps[step - 1] : kInfinity};
    desk_.mass_left = row_.top_p * total - (step > 0 ? above[step - 1] : 0.0);
    desk_.is_short = step == kSteps;
    desk_.around.low = desk_.floor;
  }

  // Where the gathered ones of a block begin; those of a run of blocks lie side by side.
  float* gathered_of(int64_t block) const { return desk_.gathered + desk_.starts[block]; }

  int64_t count_gathered(int64_t begin, int64_t end) const {
    return desk_.starts[end - 1] + desk_.counts[end - 1] - desk_.starts[begin];
  }

  // Copies those to `spare` among which the cut is, and tells how many there are.
  int64_t collect() {
    int64_t count = 0;
    for (int64_t begin = 0; begin < desk_.blocks; begin += kAtOnce) {
      const int64_t end = std::min(desk_.blocks, begin + kAtOnce);
      count += gather(gathered_of(begin), count_gathered(begin, end), desk_.cut_in.low,
                      desk_.cut_in.high, desk_.spare + count);
    }
    return count;
  }

  int64_t drawn_of_all() {
    std::fill_n(desk_.ties, desk_.blocks, static_cast<int32_t>(kBlock));
    return drawn({desk_.floor, desk_.vocab});
  }

  Threshold cut_of_gathered(const Weigher& weigh, const Quota& quota) {
    return cut_of(weigh, desk_.spare, collect(), quota);
  }

  int64_t drawn_of_cut() {
    const Weigher weigh = weigher();
    if (top_k_ == 0) {
      const Threshold cut = cut_of_gathered(weigh, {desk_.vocab, desk_.mass_left});
      keep(weigh, cut);
      return drawn(cut);
    }
    Threshold cut = cut_of_gathered(weigh, {top_k_, kInfinity});
    const double total = keep(weigh, cut);
    if (row_.top_p < 1.0) {
      cut = cut_of_gathered(weigh, {top_k_, row_.top_p * total});
      keep(weigh, cut);
    }
    return drawn(cut);
  }

  // Notes what stays of each block, and returns the mass of all.
  double keep(const Weigher& weigh, const Threshold& cut) {
    const double weight = weigh.of(cut.value);
    int64_t left = cut.ties;
    double total = 0;
    for (int64_t block = 0; block < desk_.blocks; ++block) {
      Floats sum = {};
      Ints equals = {};
      over(gathered_of(block), desk_.counts[block], [&](Floats some) {
        sum += only_where(some > cut.value, weigh(some));
        equals += some == cut.value;
      });
      const int64_t ties = std::min(left, count_of(equals));
      left -= ties;
      desk_.ties[block] = static_cast<int32_t>(ties);
      desk_.masses[block] =
          static_cast<float>(sum_of(sum) + weight * static_cast<double>(ties));
      total += desk_.masses[block];
    }
    return total;
  }

  int64_t drawn(const Threshold& cut) const {
    double total = 0, sum = 0;
    for (int64_t block = 0; block < desk_.blocks; ++block) total += desk_.masses[block];
    const double number = uniform(row_.seed, row_.position) * total;
    const double wanted = std::min(number, std::nextafter(total, 0.0));
    int64_t block = 0;
    while (sum + desk_.masses[block] <= wanted) sum += desk_.masses[block++];
    return block * kBlock + drawn_in(block, wanted - sum, cut);
  }

  // The sum of a block and that of its logits are rounded in different places, so that the last
  // one may be passed.
  int64_t drawn_in(int64_t block, double wanted, const Threshold& cut) const {
    const Weigher weigh = weigher();
    const float* x = block_at(block);
    int64_t ties = desk_.ties[block], last = 0;
    double sum = 0;
    for (int64_t at = 0; at < desk_.length(block); at += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, desk_.length(block) - at);
      const Floats weights = weigh(load_logits(x + at, count));
      for (int64_t lane = 0; lane < count; ++lane) {
        const float one = x[at + lane], weight = weights[lane];
        const bool stays = one > cut.value || (one == cut.value && ties-- > 0);
        if (!stays || weight <= 0) continue;
        last = at + lane;
        sum += weight;
        if (sum > wanted) return last;
      }
    }
    return last;
  }

  // Log-probabilities are the model's own: those of the likeliest, and what the chosen one's needs.
  void find_top() {
    look(1.0, true);
    const int64_t count = std::min(row_.num_logprobs, desk_.vocab);
    if (count > 0) {
      alone([&] { desk_.floor = kLowest; });
      gather_likeliest(count);
    }
    alone([&] {
      std::fill_n(step_.top_ids + number_ * step_.most, step_.most, -1);
      double total = 0;
      for (int64_t block = 0; block < desk_.blocks; ++block) total += desk_.masses[block];
      desk_.log_total = desk_.has_failed ? __builtin_nan("") : desk_.best + std::log(total);
      if (count > 0 && !desk_.has_failed) write_top(count);
    });
  }

  float logprob_of(float logit) const { return static_cast<float>(logit - desk_.log_total); }

  void write_top(int64_t count) {
    using Candidate = std::pair<float, int64_t>;  // the logit below 0, so that the largest is first
    std::vector<Candidate> found;
    Threshold cut = cut_of_gathered(Weigher(desk_.best, 1.0), {count, kInfinity});
    for (int64_t id = 0; id < desk_.vocab; ++id) {
      if (desk_.peaks[id / kBlock] < cut.value) {
        id += kBlock - 1;
        continue;
      }
      const float one = logits_[id];
      if (one > cut.value || (one == cut.value && cut.ties-- > 0)) {
        found.emplace_back(-one, id);
      }
    }
    std::sort(found.begin(), found.end());
    // Too few can come at all: then those that cannot, in their order.
    for (int64_t id = 0; static_cast<int64_t>(found.size()) < count; ++id) {
      if (logits_[id] == -kInfinity) found.emplace_back(kInfinity, id);
    }
    for (int64_t at = 0; at < count; ++at) {
      step_.top_ids[number_ * step_.most + at] = found[at].second;
      step_.top_logprobs[number_ * step_.most + at] = logprob_of(-found[at].first);
    }
  }

  void finish(int64_t token) {
    if (row_.is_changed()) change().undo();
    step_.tokens[number_] = token;
    if (row_.num_logprobs >= 0 && token >= 0) {
      step_.logprobs[number_] = logprob_of(logits_[token]);
    }
  }
};

// All rows. `shared` is the desk for those that workers compute together; `arrived` counts them.
inline void sample(WorkerContext& worker, const Sampling& step, Desk& shared,
                   std::atomic<int64_t>& arrived) {
  const int64_t number = arrived.fetch_add(1);
  if (number >= step.desks) return;  // there are more workers than desks: the others do it
  const int64_t own_rows = step.rows - step.rows % worker.num_workers;
  Desk own(step.vocab, step.room + number * Desk::room(step.vocab));
  for (const int64_t row : worker.each(own_rows)) {
    WorkerContext alone;
    RowSampling(step, row, alone, own)();
  }
  for (int64_t row = own_rows; row < step.rows; ++row) RowSampling(step, row, worker, shared)();
}

}  // namespace tandem
