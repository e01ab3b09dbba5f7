// The exports of the shared library: a plain C interface, which `library.py` declares.
//
// Each function exists for float (_f32) and bfloat16 (_bf16), and those that read weights or a
// cache for float16 (_f16) as well, with activations in float. Pointers are to contiguous memory
// unless a stride, in elements, is given.

#include "collectives.h"
#include "thread_pool.h"
#include "forward.h"
#include "sampling.h"

using namespace tandem;

namespace {

template <class E, class T = Computed<E>>
void run_linear(const T* x, int64_t rows, const Weight<E>& weight, const T* residual, T* out) {
  run_in_pool(rows * weight.inputs * weight.outputs / kLanes, [&](WorkerContext& worker) {
    multiply(worker, x, rows, weight, Product<T, T>(out, residual, weight));
  });
}

template <class T>
void run_linear_int8(const uint8_t* x, const float* x_scales, int64_t rows,
                     const Int8Weight& weight, const T* residual, T* out) {
  run_in_pool(rows * weight.inputs * weight.outputs / (4 * kLanes), [&](WorkerContext& worker) {
    multiply(worker, x, rows, weight, Rescaled<T, T>(out, residual, x_scales, weight));
  });
}

template <class T>
void run_pack(const T* rows, int64_t first, int64_t count, int64_t inputs, T* panels) {
  run_in_pool(count * inputs,
              [&](WorkerContext& worker) { pack(worker, rows, first, count, inputs, panels); });
}

template <class E>
void run_unpack_rows(const Weight<E>& weight, const int64_t* ids, int64_t count,
                     Computed<E>* out) {
  run_in_pool(count * weight.inputs, [&](WorkerContext& worker) {
    for (const int64_t row : worker.each_in_runs(count)) {
      unpack_row(weight, ids[row], out + row * weight.inputs);
    }
  });
}

template <class T>
void run_rms_norm(const T* x, int64_t stride, const T* weight, int64_t rows, int64_t width,
                  float eps, T* out) {
  run_in_pool(rows * width, [&](WorkerContext& worker) {
    rms_norm(worker, x, stride, weight, rows, width, eps, out);
  });
}

template <class T>
void run_add_rms_norm(const T* x, const T* residual, const T* weight, int64_t rows, int64_t width,
                      float eps, T* sum, T* out) {
  run_in_pool(rows * width, [&](WorkerContext& worker) {
    add_rms_norm(worker, x, residual, weight, rows, width, eps, sum, out);
  });
}

template <class T>
void run_silu_mul(const T* gate_up, int64_t rows, int64_t width, T* out) {
  run_in_pool(4 * rows * width,
              [&](WorkerContext& worker) { silu_mul(worker, gate_up, rows, width, out); });
}

template <class T, class C>
void run_prepare(T* qkv, int64_t stride, int64_t heads, const T* q_norm, const T* k_norm, float eps,
                 const TokenSlots<T>& slots, const LayerCache<C>& cache) {
  const int64_t width = (heads + 2 * cache.kv_heads) * cache.head_dim;
  run_in_pool(slots.tokens * width, [&](WorkerContext& worker) {
    prepare_attention(worker, qkv, stride, heads, q_norm, k_norm, eps, slots, cache);
  });
}

template <class T, class C>
void run_attend(const T* q, int64_t stride, int64_t heads, const LayerCache<C>& cache,
                const Rows& rows, float scale, T* out) {
  const int64_t group = heads / cache.kv_heads;
  const Plan plan(rows, cache.kv_heads, group, SharedPool::num_threads());
  std::vector<float> partials(plan.num_partials * group * (cache.head_dim + 2));
  const Attention<T, C> attention{q, stride, heads, cache,           rows,
                                  scale * kLog2E, out, partials.data()};
  int64_t operations = 0;
  for (const Task& task : plan.tasks) operations += Plan::cost(task) * group * cache.head_dim;
  run_in_pool(operations / kLanes, [&](WorkerContext& worker) { attend(worker, plan, attention); });
}

// Sums floats as fast as memory is read; benchmarks measure its bandwidth with it.
float run_read(const float* data, int64_t count) {
  constexpr int64_t kAtOnce = 8 * kLanes, kPiece = 1 << 18;
  const int64_t pieces = (count + kPiece - 1) / kPiece;
  std::vector<float> totals(pieces);
  run_in_pool(count, [&](WorkerContext& worker) {
    for (const int64_t piece : worker.each(pieces)) {
      const float* end = data + std::min(count, (piece + 1) * kPiece) / kAtOnce * kAtOnce;
      Floats sums[8] = {};
      for (const float* at = data + piece * kPiece; at < end; at += kAtOnce) {
        for (int part = 0; part < 8; ++part) sums[part] += load(at + part * kLanes);
      }
      for (const Floats& sum : sums) totals[piece] += sum_of(sum);
    }
  });
  float total = 0;
  for (const float one : totals) total += one;
  return total;
}

template <class E>
void run_forward(const Model<E>& model, const Step<Computed<E>>& step) {
  const int64_t per_layer = model.hidden * (model.qkv_width() + 3 * model.intermediate);
  Forward<E> forward(model, step, SharedPool::num_threads());
  run_in_pool(step.slots.tokens * model.num_layers * per_layer / kLanes,
              [&](WorkerContext& worker) { forward(worker); });
}

template <class E>
void run_stage(Forward<E>& forward, const Stage& stage) {
  run_in_pool(forward.operations_of(stage) / kLanes,
              [&](WorkerContext& worker) { forward.run(worker, stage); });
  forward.done(stage);
}

// About two scans of each logit.
void run_sample(const Sampling& step) {
  RowWorkspace shared(step.vocab, step.workspaces);
  std::atomic<int64_t> arrived{0};
  run_in_pool(2 * step.rows * step.vocab / kLanes,
              [&](WorkerContext& worker) { sample(worker, step, shared, arrived); });
}

// What became of a call: the fault, and in the bits above it the rank that it is about.
int64_t outcome(const World& world, bool is_done) {
  return is_done ? 0 : static_cast<int64_t>(world.fault()) | int64_t{world.culprit()} << 8;
}

// Calls work(world) unless the world has been closed.
template <class Work>
int64_t run_in_world(World* world, Work&& work) {
  return world ? outcome(*world, work(*world)) : static_cast<int64_t>(Fault::kClosed);
}

// As Python reads a record.
struct RecordedCall {
  int64_t order, lane, number, operation, type, root, bytes;
};

int64_t copy_records(World& world, int64_t rank, RecordedCall* out) {
  RecordedCall* next = out;
  for (int64_t at = 0; at < world.segment().num_lanes(); ++at) {
    const Lane& lane = world.segment().lane(at);
    for (size_t member = 0; member < lane.ranks.size(); ++member) {
      if (lane.ranks[member] != rank) continue;
      for (const CallRecord& record : lane.members[member]->records) {
        const uint64_t number = record.number.load(), call = record.signature.load();
        if (number == 0) continue;
        *next++ = {static_cast<int64_t>(record.order.load()), at, static_cast<int64_t>(number),
                   static_cast<int64_t>(call >> 10 & 7), static_cast<int64_t>(call >> 13 & 7),
                   static_cast<int64_t>(call >> 16 & 255), static_cast<int64_t>(call >> 24)};
      }
    }
  }
  return next - out;
}

}  // namespace

// Of activations.
#define TANDEM_EXPORTS(T, kind)                                                                    \
  int64_t tandem_all_reduce_##kind(World* world, int64_t lane, T* data, int64_t count,             \
                                   int64_t type) {                                                 \
    return run_in_world(world, [&](World& open) {                                                  \
      return open.all_reduce(open.segment().lane(lane), data, count, type);                        \
    });                                                                                            \
  }                                                                                                \
  int64_t tandem_reduce_scatter_##kind(World* world, int64_t lane, const T* in, T* out,            \
                                       int64_t count, int64_t type) {                              \
    return run_in_world(world, [&](World& open) {                                                  \
      return open.reduce_scatter(open.segment().lane(lane), in, out, count, type);                 \
    });                                                                                            \
  }                                                                                                \
  void tandem_linear_int8_##kind(const uint8_t* x, const float* x_scales, int64_t rows,            \
                                 const Int8Weight* weight, const T* residual, T* out) {            \
    run_linear_int8(x, x_scales, rows, *weight, residual, out);                                    \
  }                                                                                                \
  void tandem_rms_norm_##kind(const T* x, int64_t stride, const T* weight, int64_t rows,           \
                              int64_t width, float eps, T* out) {                                  \
    run_rms_norm(x, stride, weight, rows, width, eps, out);                                        \
  }                                                                                                \
  void tandem_add_rms_norm_##kind(const T* x, const T* residual, const T* weight, int64_t rows,    \
                                  int64_t width, float eps, T* sum, T* out) {                      \
    run_add_rms_norm(x, residual, weight, rows, width, eps, sum, out);                             \
  }                                                                                                \
  void tandem_silu_mul_##kind(const T* gate_up, int64_t rows, int64_t width, T* out) {             \
    run_silu_mul(gate_up, rows, width, out);                                                       \
  }                                                                                                \
  void tandem_prepare_attention_kv8_##kind(T* qkv, int64_t stride, int64_t heads, const T* q_norm, \
                                           const T* k_norm, float eps, const TokenSlots<T>* slots, \
                                           const LayerCache<int8_t>* cache) {                      \
    run_prepare(qkv, stride, heads, q_norm, k_norm, eps, *slots, *cache);                          \
  }                                                                                                \
  void tandem_attend_kv8_##kind(const T* q, int64_t stride, int64_t heads,                         \
                                const LayerCache<int8_t>* cache, const Rows* rows, float scale,    \
                                T* out) {                                                          \
    run_attend(q, stride, heads, *cache, *rows, scale, out);                                       \
  }                                                                                                \
  void tandem_quantize_##kind(const T* x, int64_t rows, int64_t width, const Input* input,         \
                              uint8_t* out, float* scales) {                                       \
    run_in_pool(2 * rows * width, [&](WorkerContext& worker) {                                     \
      quantize(worker, x, rows, width, *input, out, scales);                                       \
    });                                                                                            \
  }                                                                                                \
  void tandem_quantize_norm_##kind(const T* x, const T* weight, int64_t rows, int64_t width,       \
                                   float eps, const Input* input, uint8_t* out, float* scales) {   \
    run_in_pool(3 * rows * width, [&](WorkerContext& worker) {                                     \
      quantize_norm(worker, x, weight, rows, width, eps, *input, out, scales);                     \
    });                                                                                            \
  }                                                                                                \
  void tandem_quantize_gated_##kind(const T* gate_up, int64_t rows, int64_t width,                 \
                                    const Input* input, uint8_t* out, float* scales) {             \
    run_in_pool(4 * rows * width, [&](WorkerContext& worker) {                                     \
      quantize_gated(worker, gate_up, rows, width, *input, out, scales);                           \
    });                                                                                            \
  }

// Of weights, and of a cache that is not in 8 bits.
#define TANDEM_WEIGHT_EXPORTS(E, kind)                                                             \
  void tandem_linear_##kind(const Computed<E>* x, int64_t rows, const Weight<E>* weight,           \
                            const Computed<E>* residual, Computed<E>* out) {                       \
    run_linear(x, rows, *weight, residual, out);                                                   \
  }                                                                                                \
  void tandem_pack_##kind(const E* rows, int64_t first, int64_t count, int64_t inputs,             \
                          E* panels) {                                                             \
    run_pack(rows, first, count, inputs, panels);                                                  \
  }                                                                                                \
  void tandem_unpack_rows_##kind(const Weight<E>* weight, const int64_t* ids, int64_t count,       \
                                 Computed<E>* out) {                                               \
    run_unpack_rows(*weight, ids, count, out);                                                     \
  }                                                                                                \
  void tandem_prepare_attention_##kind(Computed<E>* qkv, int64_t stride, int64_t heads,            \
                                       const Computed<E>* q_norm, const Computed<E>* k_norm,       \
                                       float eps, const TokenSlots<Computed<E>>* slots,            \
                                       const LayerCache<E>* cache) {                               \
    run_prepare(qkv, stride, heads, q_norm, k_norm, eps, *slots, *cache);                          \
  }                                                                                                \
  void tandem_attend_##kind(const Computed<E>* q, int64_t stride, int64_t heads,                   \
                            const LayerCache<E>* cache, const Rows* rows, float scale,             \
                            Computed<E>* out) {                                                    \
    run_attend(q, stride, heads, *cache, *rows, scale, out);                                       \
  }                                                                                                \
  int64_t tandem_activations_##kind(const Model<E>* model, int64_t tokens) {                       \
    return Activations<Computed<E>>::count(*model, tokens);                                        \
  }                                                                                                \
  void tandem_forward_##kind(const Model<E>* model, const Step<Computed<E>>* step) {               \
    run_forward(*model, *step);                                                                    \
  }                                                                                                \
  void* tandem_begin_##kind(const Model<E>* model, const Step<Computed<E>>* step) {                \
    return new Forward<E>(*model, *step, SharedPool::num_threads());                               \
  }                                                                                                \
  void tandem_stage_##kind(void* forward, const Stage* stage) {                                    \
    run_stage(*static_cast<Forward<E>*>(forward), *stage);                                         \
  }                                                                                                \
  void tandem_end_##kind(void* forward) { delete static_cast<Forward<E>*>(forward); }

#pragma GCC visibility push(default)
extern "C" {

// Outputs of a packed weight come in panels of so many; its memory is rounded up to them.
int64_t tandem_panel() { return kPanel; }

// Compute with so many threads from now on, on these CPUs, or anywhere if there are none.
void tandem_set_threads(int64_t threads, const int64_t* cpus, int64_t num_cpus, int64_t own) {
  std::vector<CpuSet> of_threads(num_cpus ? threads : 0);
  for (int64_t thread = 0; num_cpus && thread < threads; ++thread) {
    if (own)
      of_threads[thread].push_back(int(cpus[thread % num_cpus]));
    else
      of_threads[thread].assign(cpus, cpus + num_cpus);
  }
  SharedPool::of_process().set(int(threads), std::move(of_threads));
}

int64_t tandem_num_threads() { return SharedPool::num_threads(); }

void tandem_pack_int8(const int8_t* rows, int64_t first, int64_t count, int64_t inputs,
                      int8_t* panels, int32_t* sums) {
  run_in_pool(count * inputs, [&](WorkerContext& worker) {
    pack(worker, rows, first, count, inputs, panels);
    sum_rows(worker, rows, count, inputs, sums + first);
  });
}

// Floats of a workspace, of which each worker needs one to sample.
int64_t tandem_sampling_workspace(int64_t vocab) { return RowWorkspace::num_floats(vocab); }

void tandem_sample(const Sampling* step) { run_sample(*step); }

float tandem_read(const float* data, int64_t count) { return run_read(data, count); }

// Bytes of the segment of a world.
int64_t tandem_world_bytes(const WorldArgs* args) { return WorldSegment(nullptr, *args).bytes(); }

World* tandem_world_open(uint8_t* base, const WorldArgs* args) { return new World(base, *args); }

int64_t tandem_world_join(World* world, int64_t pid, uint64_t digest, int64_t timeout_ms) {
  return outcome(*world, world->join(pid, digest, timeout_ms));
}

// Tells the others, unless this rank has never joined.
void tandem_world_close(World* world, int64_t has_joined) {
  if (has_joined) world->leave();
  delete world;
}

void tandem_world_abort(World* world, int64_t culprit, const char* cause, int64_t length) {
  world->abort(culprit, cause, length);
}

// Says how much longer than its bound of silence a rank may compute, until the next such call.
void tandem_world_expect(World* world, int64_t milliseconds) {
  world->segment().header().expected_ms.store(milliseconds, std::memory_order_relaxed);
}

int64_t tandem_world_longest_work(World* world) { return world->peers().longest_work().count(); }

// See Peers::listen_to.
int64_t tandem_world_listen(World* world, int64_t rank, int64_t milliseconds, int64_t begins) {
  return outcome(*world, world->peers().listen_to(static_cast<int>(rank),
                                                  std::chrono::milliseconds(milliseconds), begins));
}

void tandem_world_stop_listening(World* world) { world->peers().stop_listening(); }

// The rank that found the first fault of the world; -1: there is none.
int64_t tandem_world_failed(World* world) {
  return int64_t{world->segment().header().failed.load()} - 1;
}

// Header of a rank; see RankHeader.
const RankHeader* tandem_world_rank(World* world, int64_t rank) {
  return &world->segment().rank(rank);
}

// Records of a rank, in no order; returns their number. `out` has room for all that there may be.
int64_t tandem_world_records(World* world, int64_t rank, RecordedCall* out) {
  return copy_records(*world, rank, out);
}

int64_t tandem_world_max_records(World* world) {
  return 2 * kNumRecords * world->segment().num_lanes();
}

int64_t tandem_all_gather(World* world, int64_t lane, const uint8_t* in, uint8_t* out,
                          int64_t bytes, int64_t type) {
  return run_in_world(world, [&](World& open) {
    return open.all_gather(open.segment().lane(lane), in, out, bytes, type);
  });
}

int64_t tandem_broadcast(World* world, int64_t lane, uint8_t* data, int64_t bytes, int64_t root,
                         int64_t type) {
  return run_in_world(world, [&](World& open) {
    return open.broadcast(open.segment().lane(lane), data, bytes, root, type);
  });
}

// From rank `source` to rank `target`, one of which is this one.
int64_t tandem_send(World* world, int64_t source, int64_t target, uint8_t* data, int64_t bytes,
                    int64_t group, int64_t type) {
  return run_in_world(world, [&](World& open) {
    return open.send(open.segment().pair(source, target), data, bytes, group, type);
  });
}

TANDEM_EXPORTS(float, f32)
TANDEM_EXPORTS(Bf16, bf16)
TANDEM_WEIGHT_EXPORTS(float, f32)
TANDEM_WEIGHT_EXPORTS(Bf16, bf16)
TANDEM_WEIGHT_EXPORTS(F16, f16)

}  // extern "C"
#pragma GCC visibility pop
