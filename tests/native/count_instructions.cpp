// A plugin of qemu that prints how many instructions a program has executed, when it ends. Debian
// ships no plugin with qemu, and no header; what is declared here is as in qemu 4.2 and later.

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>

struct qemu_plugin_tb;

extern "C" {
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*call)(uint64_t, qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_inline(qemu_plugin_tb* block, int operation, void* counter,
                                              uint64_t by);
size_t qemu_plugin_tb_n_insns(const qemu_plugin_tb* block);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*call)(uint64_t, void*), void* data);

__attribute__((visibility("default"))) extern const int qemu_plugin_version;
const int qemu_plugin_version = 1;
}

namespace {

constexpr int kAdd = 0;  // QEMU_PLUGIN_INLINE_ADD_U64
uint64_t executed = 0;   // by one thread: the addition is not atomic

void count_block(uint64_t, qemu_plugin_tb* block) {
  qemu_plugin_register_vcpu_tb_exec_inline(block, kAdd, &executed, qemu_plugin_tb_n_insns(block));
}

void print_count(uint64_t, void*) { std::fprintf(stderr, "%" PRIu64 "\n", executed); }

}  // namespace

extern "C" __attribute__((visibility("default"))) int qemu_plugin_install(uint64_t id, const void*,
                                                                          int, char**) {
  qemu_plugin_register_vcpu_tb_trans_cb(id, count_block);
  qemu_plugin_register_atexit_cb(id, print_count, nullptr);
  return 0;
}
