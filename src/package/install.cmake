# `cmake --install`, packages of Debian and the wheel. Components:
#
#   runtime      libtilewright.so.0
#   development  headers, libtilewright.a, what find_package and pkg-config read
#   program      the program `tilewright`
#   python       the Python package with the shared library in it (pyproject.toml)
include(CMakePackageConfigHelpers)

# Installing and packing take what is built; tests and benchmarks need not be.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

install(TARGETS tilewright_shared tilewright_static tilewright_cpp EXPORT tilewright
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY src/include/tilewright DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.h")
if(TARGET tilewright)
  install(TARGETS tilewright RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
endif()

set(tilewright_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tilewright)
install(EXPORT tilewright NAMESPACE tilewright:: FILE tilewright-targets.cmake
  DESTINATION ${tilewright_package_dir} COMPONENT development)
configure_package_config_file(src/package/tilewright-config.cmake.in
  ${PROJECT_BINARY_DIR}/package/tilewright-config.cmake INSTALL_DESTINATION ${tilewright_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/tilewright-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/tilewright-config.cmake
              ${PROJECT_BINARY_DIR}/package/tilewright-config-version.cmake
  DESTINATION ${tilewright_package_dir} COMPONENT development)

# Relative, so that the tree may be moved.
file(RELATIVE_PATH tilewright_pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(name tilewright tilewright-c)
  configure_file(src/package/${name}.pc.in ${PROJECT_BINARY_DIR}/package/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT development)
endforeach()

install(DIRECTORY src/python/tilewright DESTINATION . COMPONENT python EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.py")
install(FILES $<TARGET_FILE:tilewright_shared> DESTINATION tilewright COMPONENT python EXCLUDE_FROM_ALL
  RENAME libtilewright.so)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tilewright)
set(CPACK_PACKAGE_CONTACT "The Tilewright authors")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Attention kernels generated, compiled and launched at run time")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development program)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libtilewright${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtilewright-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "libtilewright${PROJECT_VERSION_MAJOR} (= ${PROJECT_VERSION}), libabsl-dev, libssl-dev")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME tilewright)
include(CPack)
