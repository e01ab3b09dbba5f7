// One token a row, drawn or the argmax, with log-probabilities where they are asked for.
//
// Rows are independent. Where there are more of them than threads, each thread takes one after
// another, whose logits then stay in its cache; threads share the blocks of the last ones. Either
// way a row takes several phases, and the results of one stand in a workspace before the next
// begins: a worker that lost its core decides nothing.
//
// The random number of a draw comes from (seed, position) alone, and is looked up among the
// cumulated weights in the order of the vocabulary. Those of a block are summed up first, so that
// in the end one block is searched logit by logit.

#pragma once

#include <atomic>
#include <numeric>
#include <utility>

#include "sampling_blocks.h"
#include "sampling_sample.h"

namespace tandem {

// One step. Tokens and log-probabilities are written; logits are the same after it as before.
struct Sampling {
  float* logits;  // [rows, vocab]
  const SampledRow* sampled_rows;
  int64_t rows, vocab;
  int64_t* tokens;   // [rows]; -1: the logits are not finite
  float* logprobs;   // [rows]: of the tokens
  int64_t max_top;   // width of the next two
  int64_t* top_ids;  // [rows, max_top], best first
  float* top_logprobs;
  float* workspaces;  // [num_workspaces * RowWorkspace::num_floats]
  int64_t num_workspaces;
};

// SplitMix64's finaliser: see counter_rng.py.
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

// Bias, then penalties, then banned tokens; in double precision, rounded once, as the reference.
class Adjustment {
 public:
  Adjustment(const SampledRow& row, float* logits, int64_t vocab, std::vector<float>& before)
      : row_(row), logits_(logits), vocab_(vocab), before_(before) {}

  void apply() {
    before_.clear();
    before_.reserve(row_.num_biased + row_.num_seen + row_.num_banned);
    for (int64_t at = 0; at < row_.num_biased; ++at) {
      adjust(row_.biased[at], [&](float x) { return x + row_.biases[at]; });
    }
    for (int64_t at = 0; at < row_.num_seen; ++at) {
      adjust(row_.seen[at], [&](float x) { return penalised(x, row_.counts[at]); });
    }
    for (int64_t at = 0; at < row_.num_banned; ++at) {
      adjust(row_.banned[at], [](float) { return -kInfinity; });
    }
  }

  // From the last to the first: a logit may have been adjusted twice.
  void undo() {
    const std::pair<const int64_t*, int64_t> lists[] = {
        {row_.banned, row_.num_banned}, {row_.seen, row_.num_seen}, {row_.biased, row_.num_biased}};
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
  void adjust(int64_t id, Rule&& rule) {
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

// Samples one row, in one thread or in several.
class RowSampling : private RowBlocks {
 public:
  RowSampling(const Sampling& step, int64_t number, WorkerContext& worker, RowWorkspace& workspace)
      : RowBlocks(step.logits + number * step.vocab, worker, workspace),
        step_(step),
        number_(number),
        row_(step.sampled_rows[number]),
        top_k_(row_.top_k > 0 && row_.top_k < step.vocab ? row_.top_k : 0) {}

  void operator()() {
    if (shows_logprobs()) find_top_logprobs();
    if (row_.is_adjusted()) single([&] { adjustment().apply(); });
    if (row_.is_adjusted() || !shows_logprobs()) scan(row_.temperature, draws_of_all());
    if (row_.is_greedy()) {
      single([&] { finish(ws_.has_failed ? -1 : argmax()); });
      return;
    }
    single([&] { ws_.floor = floor_of_margin(); });
    if (top_k_ > 0) {
      gather_top(top_k_);
    } else if (!is_weighed()) {
      weigh_blocks();
    }
    if (top_k_ == 0 && row_.top_p < 1.0) gather_around_cut();
    single([&] { finish(ws_.has_failed ? -1 : is_cut() ? drawn_of_cut() : drawn_of_all()); });
  }

 private:
  const Sampling& step_;
  const int64_t number_;
  const SampledRow& row_;
  const int64_t top_k_;

  bool shows_logprobs() const { return row_.num_logprobs >= 0; }
  bool has_margin() const { return row_.margin > -HUGE_VAL; }
  bool is_cut() const { return top_k_ > 0 || row_.top_p < 1.0; }

  // True if all blocks that are scanned are weighed, whatever the largest logit of all is.
  bool draws_of_all() const { return !row_.is_greedy() && top_k_ == 0 && !has_margin(); }

  // True if the blocks have the masses of the draw already; those of the log-probabilities may do.
  bool is_weighed() const {
    return draws_of_all() && (!shows_logprobs() || row_.is_adjusted() || row_.temperature == 1.0);
  }

  Adjustment adjustment() { return Adjustment(row_, logits_, ws_.vocab, ws_.before); }
  Weigher weigher() const { return Weigher(ws_.best, row_.temperature); }

  int64_t argmax() const {
    const float* peak = std::find(ws_.peaks, ws_.peaks + ws_.blocks, ws_.best);
    const float* found = block_at(peak - ws_.peaks);
    while (*found != ws_.best) ++found;
    return found - logits_;
  }

  // min_p leaves out logits below it; -inf never stays.
  float floor_of_margin() const {
    return std::max(kLowest, static_cast<float>(ws_.best + row_.margin));
  }

  void weigh_blocks() {
    each_block([&](int64_t block) {
      if (ws_.has_failed) return;
      const bool has_any = ws_.peaks[block] >= ws_.floor;
      ws_.masses[block] =
          has_any ? mass_of(block_at(block), ws_.length(block), weigher(), ws_.floor) : 0;
    });
  }

  // Gathers at least `count` of the largest logits, as far as there are so many.
  void gather_top(int64_t count) {
    single([&] {
      if (!ws_.has_failed) bracket_top(count);
    });
    gather_blocks([&] { return !ws_.has_failed; });
    if (count <= ws_.blocks) return;
    single([&] {
      ws_.is_short = !ws_.has_failed && count_gathered() < count;
      ws_.bracket.low = ws_.floor;
    });
    gather_blocks([&] { return ws_.is_short; });
  }

  // The largest logits of `count` blocks are not below the last of the `count` largest. With fewer
  // blocks a sample gives an estimate, which may be wrong.
  void bracket_top(int64_t count) {
    Bracket top{kLowest, kInfinity};
    if (count > ws_.blocks) {
      top = Sample(ws_, logits_).bracket_of_top(count);
    } else {
      float* last = ws_.scratch + count - 1;
      std::copy(ws_.peaks, ws_.peaks + ws_.blocks, ws_.scratch);
      std::nth_element(ws_.scratch, last, ws_.scratch + ws_.blocks, std::greater<float>());
      top.low = *last;
    }
    ws_.is_of_tail = false;
    ws_.bracket = {std::max(ws_.floor, top.low), kInfinity};
    ws_.cut_bracket = {kLowest, top.high};
  }

  // Gathers the logits among which the mass of top_p is reached, of blocks that are weighed.
  void gather_around_cut() {
    single([&] {
      if (!ws_.has_failed) bracket_cut();
    });
    gather_blocks([&] { return !ws_.has_failed; });
    each_run([&](int64_t begin, int64_t end) {
      if (ws_.has_failed) return;
      masses_of(gathered_of(begin), count_gathered(begin, end), weigher(), ws_.steps,
                ws_.above + begin * kSteps);
    });
    single([&] {
      if (!ws_.has_failed) bracket_mass();
    });
    gather_blocks([&] { return !ws_.has_failed && ws_.is_short; });
  }

  // Gathers either the logits above the cut or those below it, whichever should be fewer.
  void bracket_cut() {
    Sample sample(ws_, logits_);
    sample.set_steps(weigher(), row_.top_p);
    float& last = ws_.steps[kSteps - 1];
    const int64_t num_below = sample.count_below(ws_.steps[0]);
    ws_.is_of_tail = num_below > 0 && num_below < sample.count_from(last);
    if (ws_.is_of_tail) last = ws_.floor;
    ws_.bracket = {last, ws_.is_of_tail ? ws_.steps[0] : kInfinity};
  }

  // Finds the bracket of the cut, which lies in the gathered logits unless the sample was wrong.
  void bracket_mass() {
    double total = 0, above[kSteps] = {};
    for (int64_t block = 0; block < ws_.blocks; ++block) total += ws_.masses[block];
    for (int64_t begin = 0; begin < ws_.blocks; begin += kAtOnce) {
      for (int step = 0; step < kSteps; ++step) above[step] += ws_.above[begin * kSteps + step];
    }
    if (ws_.is_of_tail) {
      const double not_gathered = total - above[kSteps - 1];
      for (double& mass : above) mass += not_gathered;
    }
    int step = 0;
    while (step < kSteps && above[step] < row_.top_p * total) ++step;
    ws_.cut_bracket = {step < kSteps ? ws_.steps[step] : ws_.floor,
                       step > 0 ? ws_.steps[step - 1] : kInfinity};
    ws_.mass_left = row_.top_p * total - (step > 0 ? above[step - 1] : 0.0);
    ws_.is_short = step == (ws_.is_of_tail ? 0 : kSteps);
    ws_.is_of_tail = ws_.is_of_tail && !ws_.is_short;
    ws_.bracket = {ws_.floor, kInfinity};
  }

  int64_t drawn_of_all() {
    std::fill_n(ws_.ties, ws_.blocks, static_cast<int32_t>(kBlock));
    return drawn({ws_.floor, ws_.vocab});
  }

  Threshold cut_of_gathered(const Weigher& weigh, const Quota& quota) {
    return cut_of(weigh, ws_.scratch, collect(), quota);
  }

  Threshold cut_of_top(const Weigher& weigh, int64_t count) {
    int64_t inside = collect(), above = count_gathered() - inside;
    if (inside == 0 || above >= count) {  // the sample was wrong
      ws_.cut_bracket.high = kInfinity;
      inside = collect();
      above = 0;
    }
    return cut_of(weigh, ws_.scratch, inside, {count - above, kInfinity});
  }

  int64_t drawn_of_cut() {
    const Weigher weigh = weigher();
    if (top_k_ == 0) {
      const Threshold cut = cut_of_gathered(weigh, {ws_.vocab, ws_.mass_left});
      keep(weigh, cut);
      return drawn(cut);
    }
    Threshold cut = cut_of_top(weigh, top_k_);
    const double total = keep(weigh, cut);
    if (row_.top_p < 1.0) {
      ws_.cut_bracket = {cut.value, kInfinity};
      cut = cut_of_gathered(weigh, {top_k_, row_.top_p * total});
      keep(weigh, cut);
    }
    return drawn(cut);
  }

  // Records the mass and ties that stay of each block, and returns the mass of all.
  double keep(const Weigher& weigh, const Threshold& cut) {
    const double weight = weigh.of(cut.value);
    int64_t left = cut.ties;
    double total = 0;
    for (int64_t block = 0; block < ws_.blocks; ++block) {
      Floats sum = {};
      Ints equals = {};
      each_vector(gathered_of(block), ws_.counts[block], [&](Floats some) {
        sum += only_where(ws_.is_of_tail ? some < cut.value : some > cut.value, weigh(some));
        equals += some == cut.value;
      });
      const auto num_equal = static_cast<double>(count_of(equals));
      const double above = ws_.is_of_tail
                               ? mass_above(block, cut.value, sum_of(sum) + weight * num_equal)
                               : sum_of(sum);
      const int64_t ties = std::min(left, count_of(equals));
      left -= ties;
      ws_.ties[block] = static_cast<int32_t>(ties);
      ws_.masses[block] = static_cast<float>(above + weight * static_cast<double>(ties));
      total += ws_.masses[block];
    }
    return total;
  }

  // The mass above the cut of a block, of whose mass `below` is not. A small difference of the two
  // would be rounding alone.
  double mass_above(int64_t block, float cut, double below) const {
    const double above = ws_.masses[block] - below;
    if (above >= ws_.masses[block] / 2) return above;
    return mass_of(block_at(block), ws_.length(block), weigher(), of_ordinal(ordinal_of(cut) + 1));
  }

  int64_t drawn(const Threshold& cut) const {
    double total = 0, sum = 0;
    for (int64_t block = 0; block < ws_.blocks; ++block) total += ws_.masses[block];
    const double number = uniform(row_.seed, row_.position) * total;
    const double target = std::min(number, std::nextafter(total, 0.0));
    int64_t block = 0;
    while (sum + ws_.masses[block] <= target) sum += ws_.masses[block++];
    return block * kBlock + drawn_in(block, target - sum, cut);
  }

  // The sum of a block and that of its logits are rounded in different places, so that the last
  // one may be passed.
  int64_t drawn_in(int64_t block, double target, const Threshold& cut) const {
    const Weigher weigh = weigher();
    const float* x = block_at(block);
    int64_t ties = ws_.ties[block], last = 0;
    double sum = 0;
    for (int64_t at = 0; at < ws_.length(block); at += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, ws_.length(block) - at);
      const Floats weights = weigh(load_logits(x + at, count));
      for (int64_t lane = 0; lane < count; ++lane) {
        const float one = x[at + lane], weight = weights[lane];
        const bool stays = one > cut.value || (one == cut.value && ties-- > 0);
        if (!stays || weight <= 0) continue;
        last = at + lane;
        sum += weight;
        if (sum > target) return last;
      }
    }
    return last;
  }

  // Log-probabilities are the model's own: of the top tokens, and log_total for the sampled one.
  void find_top_logprobs() {
    scan(1.0, true);
    const int64_t count = std::min(row_.num_logprobs, ws_.vocab);
    if (count > 0) {
      single([&] { ws_.floor = kLowest; });
      gather_top(count);
    }
    single([&] {
      std::fill_n(step_.top_ids + number_ * step_.max_top, step_.max_top, -1);
      double total = 0;
      for (int64_t block = 0; block < ws_.blocks; ++block) total += ws_.masses[block];
      ws_.log_total = ws_.has_failed ? __builtin_nan("") : ws_.best + std::log(total);
      if (count > 0 && !ws_.has_failed) write_top(count);
    });
  }

  float logprob_of(float logit) const { return static_cast<float>(logit - ws_.log_total); }

  void write_top(int64_t count) {
    using Candidate = std::pair<float, int64_t>;  // the negated logit, so that the largest is first
    std::vector<Candidate> found;
    Threshold cut = cut_of_top(Weigher(ws_.best, 1.0), count);
    for (int64_t id = 0; id < ws_.vocab; ++id) {
      if (ws_.peaks[id / kBlock] < cut.value) {
        id += kBlock - 1;
        continue;
      }
      const float one = logits_[id];
      if (one > cut.value || (one == cut.value && cut.ties-- > 0)) {
        found.emplace_back(-one, id);
      }
    }
    std::sort(found.begin(), found.end());
    // Where too few tokens are possible, the others follow in their order.
    for (int64_t id = 0; static_cast<int64_t>(found.size()) < count; ++id) {
      if (logits_[id] == -kInfinity) found.emplace_back(kInfinity, id);
    }
    for (int64_t at = 0; at < count; ++at) {
      step_.top_ids[number_ * step_.max_top + at] = found[at].second;
      step_.top_logprobs[number_ * step_.max_top + at] = logprob_of(-found[at].first);
    }
  }

  void finish(int64_t token) {
    if (row_.is_adjusted()) adjustment().undo();
    step_.tokens[number_] = token;
    if (row_.num_logprobs >= 0 && token >= 0) {
      step_.logprobs[number_] = logprob_of(logits_[token]);
    }
  }
};

// All rows. `shared` is the workspace of rows that workers compute together; `arrived` counts the
// workers.
inline void sample(WorkerContext& worker, const Sampling& step, RowWorkspace& shared,
                   std::atomic<int64_t>& arrived) {
  const int64_t number = arrived.fetch_add(1);
  if (number >= step.num_workspaces) return;  // no workspace is left: the others do it
  const int64_t own_rows = step.rows - step.rows % worker.num_workers;
  RowWorkspace own(step.vocab, step.workspaces + number * RowWorkspace::num_floats(step.vocab));
  for (const int64_t row : worker.each(own_rows)) {
    WorkerContext alone;
    RowSampling(step, row, alone, own)();
  }
  for (int64_t row = own_rows; row < step.rows; ++row) RowSampling(step, row, worker, shared)();
}

}  // namespace tandem
