// Stands in for the NVRTC of CUDA 12.3: it has every function, and compiles nothing.
#define TILEWRIGHT_UNUSED_FUNCTION(name) \
  int name() { __builtin_trap(); }

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 3;
  return 0;
}

const char* nvrtcGetErrorString(int) { return "no error"; }

TILEWRIGHT_UNUSED_FUNCTION(nvrtcGetNumSupportedArchs)
TILEWRIGHT_UNUSED_FUNCTION(nvrtcGetSupportedArchs)
TILEWRIGHT_UNUSED_FUNCTION(nvrtcCreateProgram)
TILEWRIGHT_UNUSED_FUNCTION(nvrtcDestroyProgram)
TILEWRIGHT_UNUSED_FUNCTION(nvrtcCompileProgram)
TILEWRIGHT_UNUSED_FUNCTION(nvrtcGetProgramLogSize)
TILEWRIGHT_UNUSED_FUNCTION(nvrtcGetProgramLog)
TILEWRIGHT_UNUSED_FUNCTION(nvrtcGetPTXSize)
TILEWRIGHT_UNUSED_FUNCTION(nvrtcGetPTX)
TILEWRIGHT_UNUSED_FUNCTION(nvrtcGetCUBINSize)
TILEWRIGHT_UNUSED_FUNCTION(nvrtcGetCUBIN)

}  // extern "C"
