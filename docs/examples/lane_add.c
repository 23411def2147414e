/* Adds two vectors through a local lane of residentd.
 *
 *   cc lane_add.c $(pkg-config --cflags --libs residentd_lane) -o lane_add
 *   residentctl lane add x:1024= y:1024= out:1024= alpha=2 -- ./lane_add */
#include <residentd_lane.h>
#include <stdio.h>

static int fail(const char* why) {
  fprintf(stderr, "lane_add: %s\n", why);
  return 1;
}

int main(void) {
  residentd_lane* lane;
  residentd_lane_completion done;
  uint64_t words[3]; /* Where x, y and out begin. */
  float* v[3];
  int i;

  if (residentd_lane_attach(NULL, NULL, &lane) != RESIDENTD_LANE_OK)
    return fail(residentd_lane_last_error());
  for (i = 0; i < 3; ++i) {
    v[i] = (float*)residentd_lane_memory(lane, (uint32_t)i, NULL);
    if (v[i] == NULL) return fail(residentd_lane_last_error());
    words[i] = residentd_lane_place_at((uint32_t)i, 0);
  }
  for (i = 0; i < 1024; ++i) v[0][i] = (float)i, v[1][i] = 10;
  if (residentd_lane_call(lane, 0, words, 3, -1, &done) != RESIDENTD_LANE_OK)
    return fail(residentd_lane_last_error());
  if (done.status != RESIDENTD_LANE_STATUS_OK) return fail(residentd_lane_explain(lane, &done));
  printf("out[0] = %g, out[1023] = %g\n", v[2][0], v[2][1023]);

  words[2] = residentd_lane_place_at(2, 64); /* 16 elements too far. */
  residentd_lane_call(lane, 0, words, 3, -1, &done);
  printf("refused: %s\n", residentd_lane_explain(lane, &done));
  residentd_lane_detach(lane);
  return 0;
}
