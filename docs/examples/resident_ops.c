/* The softmax of two rows with libresident_ops, on the CPU: no daemon, no GPU.
 *
 *   cc resident_ops.c $(pkg-config --cflags --libs resident_ops) -o example && ./example
 *
 * On a GPU the same calls take its number instead of RESIDENT_OPS_CPU, device addresses and a
 * cudaStream_t; call resident_ops_status when the stream is synchronized. */
#include <resident_ops.h>
#include <stdio.h>

static int fail(void) {
  fprintf(stderr, "example: %s\n", resident_ops_last_error());
  return 1;
}

int main(void) {
  float x[2][3] = {{1, 2, 3}, {0, 0, 0}};
  float softmax[2][3];
  const int64_t shape[] = {2, 3};
  resident_ops_argument arguments[2];
  resident_ops* ops = NULL;
  int i;

  if (resident_ops_create(RESIDENT_OPS_CPU, 0, &ops) != RESIDENT_OPS_OK) return fail();
  arguments[0] = resident_ops_dense(x, RESIDENT_OPS_F32, 2, shape);
  arguments[1] = resident_ops_dense(softmax, RESIDENT_OPS_F32, 2, shape);
  if (resident_ops_run(ops, "softmax", arguments, 2, NULL) != RESIDENT_OPS_OK) return fail();
  for (i = 0; i < 6; ++i) printf("%.4f%c", softmax[i / 3][i % 3], i % 3 == 2 ? '\n' : ' ');

  /* A wrong call is refused with the reason. */
  if (resident_ops_run(ops, "softmax", arguments, 1, NULL) == RESIDENT_OPS_OK) return 1;
  printf("refused: %s\n", resident_ops_last_error());
  return resident_ops_destroy(ops) == RESIDENT_OPS_OK ? 0 : fail();
}
