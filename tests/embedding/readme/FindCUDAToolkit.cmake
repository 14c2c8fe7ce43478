# In the place of CMake's own module: the driver that the test names, on machines without a toolkit.
add_library(CUDA::cuda_driver UNKNOWN IMPORTED)
set_target_properties(CUDA::cuda_driver PROPERTIES IMPORTED_LOCATION ${CUDA_DRIVER_LIBRARY}
                      INTERFACE_INCLUDE_DIRECTORIES ${CUDA_INCLUDE_DIR})
set(CUDAToolkit_FOUND TRUE)
