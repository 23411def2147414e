// The FLUX programs of the benchmarks.
#ifndef RESIDENT_TESTS_FLUX_BENCHMARK_PROGRAMS_H_
#define RESIDENT_TESTS_FLUX_BENCHMARK_PROGRAMS_H_

#include "runtime/flux/run.h"

namespace resident::flux {

// R0 = sum of i * i ^ i over i = R1 .. 1: arithmetic in a loop.
inline const Bytecode kSum = {0x40, 1, 0xe8, 3,         // MOVI16 R1, 1000
                              0x22, 2, 1,    1,         // MUL R2, R1, R1
                              0x27, 2, 2,    1,         // XOR R2, R2, R1
                              0x20, 0, 0,    2,         // ADD R0, R0, R2
                              0x46, 1, 12,   0, 0x00};  // LOOP R1, 12; HALT

// Collatz steps of R1: branches that depend on the data.
inline const Bytecode kCollatz = {0x18, 3, 1,        //  0 MOVI R3, 1
                                  0x18, 4, 3,        //  3 MOVI R4, 3
                                  0x40, 1, 97,   0,  //  6 MOVI16 R1, 97
                                  0x25, 2, 1,    3,  // 10 AND R2, R1, R3
                                  0x3c, 2, 14,   0,  // 14 JZ R2, 28
                                  0x22, 1, 1,    4,  // 18 MUL R1, R1, R4
                                  0x08, 1,           // 22 INC R1
                                  0x43, 0, 8,    0,  // 24 JMP 32
                                  0x29, 1, 1,    3,  // 28 SHR R1, R1, R3
                                  0x08, 0,           // 32 INC R0
                                  0x21, 5, 1,    3,  // 34 SUB R5, R1, R3
                                  0x3d, 5, 0xe4, 0,  // 38 JNZ R5, 10
                                  0x00};

// Calls a subroutine 1,000 times: the stack.
inline const Bytecode kCalls = {0x40, 1, 0xe8, 3,  //  0 MOVI16 R1, 1000
                                0x4a, 0, 9,    0,  //  4 CALL 13
                                0x46, 1, 4,    0,  //  8 LOOP R1, 4
                                0x00,              // 12 HALT
                                0x0c, 1,           // 13 PUSH R1
                                0x19, 0, 3,        // 15 ADDI R0, 3
                                0x0d, 2,           // 18 POP R2
                                0x02};             // 20 RET

// R0 = sum of i * i over i = R1 .. 1: a LOOP with four instructions in each round.
inline const Bytecode kSumOfInput = {0x18, 0, 0,      //  0 MOVI R0, 0
                                     0x22, 2, 1,  1,  //  3 MUL R2, R1, R1
                                     0x20, 0, 0,  2,  //  7 ADD R0, R0, R2
                                     0x26, 3, 2,  0,  // 11 OR R3, R2, R0
                                     0x46, 1, 12, 0,  // 15 LOOP R1, 3
                                     0x00};

// The same as kCalls, for a number of rounds that is given in R1.
inline const Bytecode kCallsOfInput = {0x4a, 0, 9, 0,  //  0 CALL 9
                                       0x46, 1, 4, 0,  //  4 LOOP R1, 0
                                       0x00,           //  8 HALT
                                       0x0c, 1,        //  9 PUSH R1
                                       0x19, 0, 3,     // 11 ADDI R0, 3
                                       0x0d, 2,        // 14 POP R2
                                       0x02};          // 16 RET

// R1 = greatest common divisor of R1 and R2, R0 = the number of steps: divisions.
inline const Bytecode kGcdOfInput = {0x3c, 2, 22,   0,     //  0 JZ R2, 22
                                     0x24, 3, 1,    2,     //  4 MOD R3, R1, R2
                                     0x3a, 1, 2,    0,     //  8 MOV R1, R2
                                     0x3a, 2, 3,    0,     // 12 MOV R2, R3
                                     0x08, 0,              // 16 INC R0
                                     0x43, 0, 0xee, 0xff,  // 18 JMP 0
                                     0x00};

// The same as kCollatz, for a number that is given in R1.
inline const Bytecode kCollatzOfInput = [] {
  Bytecode code = kCollatz;
  for (size_t i = 6; i < 10; ++i) code[i] = 0x01;  // NOP in place of MOVI16 R1, 97.
  return code;
}();

}  // namespace resident::flux

#endif  // RESIDENT_TESTS_FLUX_BENCHMARK_PROGRAMS_H_
