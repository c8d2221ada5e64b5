// A plugin for qemu's user-mode emulation that counts how often each guest instruction is executed.
//
//   cc -shared -fPIC -O2 -o icount.so icount.c
//   qemu-aarch64 -plugin ./icount.so,out=FILE -d plugin PROGRAM
//
// FILE gets one line "address count" (hexadecimal, decimal) per executed instruction, in order of address.
// The declarations below are the part of qemu's plugin interface (version 1) that is used: distributions ship
// no header.
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };

EXPORT int qemu_plugin_version = 1;
EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info* info, int argc, char** argv);

extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t,
                                                  void (*)(qemu_plugin_id_t, struct qemu_plugin_tb*));
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
extern struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn*);
extern void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn*, enum qemu_plugin_op, void*,
                                                       uint64_t);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void*), void*);

struct counter {
    uint64_t address, count;
};

// Open addressing over pointers, because the emulator keeps the addresses of the counters.
enum { table_bits = 20, table_size = 1 << table_bits };
static struct counter* table[table_size];
static size_t used;
static const char* out_path;

static struct counter* counter_of(uint64_t address) {
    uint32_t slot = (uint32_t)((address >> 2) * 2654435761u) >> (32 - table_bits);
    while (table[slot] != NULL && table[slot]->address != address)
        slot = (slot + 1) % table_size;
    if (table[slot] == NULL) {
        if (++used == table_size || (table[slot] = calloc(1, sizeof(struct counter))) == NULL) {
            fputs("icount: too many instructions\n", stderr);
            exit(1);
        }
        table[slot]->address = address;
    }
    return table[slot];
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb* block) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); ++i) {
        struct qemu_plugin_insn* instruction = qemu_plugin_tb_get_insn(block, i);
        struct counter* to = counter_of(qemu_plugin_insn_vaddr(instruction));
        qemu_plugin_register_vcpu_insn_exec_inline(instruction, QEMU_PLUGIN_INLINE_ADD_U64, &to->count, 1);
    }
}

static int by_address(const void* a, const void* b) {
    const uint64_t x = (*(struct counter* const*)a)->address, y = (*(struct counter* const*)b)->address;
    return (x > y) - (x < y);
}

static void on_exit_of_guest(qemu_plugin_id_t id, void* data) {
    (void)id;
    (void)data;
    size_t n = 0;
    for (size_t i = 0; i < table_size; ++i)
        if (table[i] != NULL)
            table[n++] = table[i];
    qsort(table, n, sizeof *table, by_address);
    FILE* out = fopen(out_path, "w");
    if (out == NULL) {
        perror(out_path);
        return;
    }
    for (size_t i = 0; i < n; ++i)
        if (table[i]->count != 0)
            fprintf(out, "%llx %llu\n", (unsigned long long)table[i]->address,
                    (unsigned long long)table[i]->count);
    fclose(out);
}

int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info* info, int argc, char** argv) {
    (void)info;
    for (int i = 0; i < argc; ++i)
        if (strncmp(argv[i], "out=", 4) == 0)
            out_path = strdup(argv[i] + 4);
    if (out_path == NULL) {
        fputs("icount: out=FILE is missing\n", stderr);
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_atexit_cb(id, on_exit_of_guest, NULL);
    return 0;
}
