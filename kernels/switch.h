/* Going from one fiber to another: 20 instructions, where ucontext makes two system calls.

SAVED_WORDS: how many words lab_switch keeps on a stack; ENTRY_WORD: which of them is the address it returns to. */

#pragma once

// lab_switch(&old, new): keep what a call has to preserve on the stack, go on with another one.
extern "C" void lab_switch(void **old_stack, void *new_stack);
#ifdef __APPLE__
#define LAB_SYMBOL "_lab_switch"
#define LAB_HIDE ".private_extern "
#else
#define LAB_SYMBOL "lab_switch"
#define LAB_HIDE ".hidden "
#endif
#if defined(__x86_64__)
constexpr int SAVED_WORDS = 6, ENTRY_WORD = 6;
asm(".text\n.globl " LAB_SYMBOL "\n" LAB_HIDE LAB_SYMBOL "\n.p2align 4\n" LAB_SYMBOL ":\n"
    "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
    "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
#elif defined(__aarch64__)
constexpr int SAVED_WORDS = 20, ENTRY_WORD = 11;
asm(".text\n.globl " LAB_SYMBOL "\n" LAB_HIDE LAB_SYMBOL "\n.p2align 4\n" LAB_SYMBOL ":\n"
    "sub sp, sp, #160\n stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\n stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n stp d8, d9, [sp, #96]\n"
    "stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n"
    "ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n add sp, sp, #160\n ret\n");
#else
#error "the CPU runner knows x86-64 and arm64 processors"
#endif
