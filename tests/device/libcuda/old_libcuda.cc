// Stands in for the driver of a machine that nobody updated: it serves CUDA 11.8 and has none of
// what came later.
extern "C" {

int cuDriverGetVersion(int* version) {
  *version = 11080;
  return 0;
}

// Nobody may go on to this after having seen the version.
int cuInit(unsigned) { __builtin_trap(); }

}  // extern "C"
