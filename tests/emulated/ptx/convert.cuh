// kernel_templates/ptx/convert.cuh on the host, where core/convert.cuh does all in bits.
#ifndef TILEWRIGHT_PTX_CONVERT_CUH_
#define TILEWRIGHT_PTX_CONVERT_CUH_
#endif  // TILEWRIGHT_PTX_CONVERT_CUH_
