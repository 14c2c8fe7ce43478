# The libraries that applications link, all made of the same objects:
#
#   tilewright::tilewright  the C++ interface and the C interface, from libtilewright.so
#   tilewright::static      the same from libtilewright.a, of which only what is used stays
#   tilewright::c           the C interface alone, from libtilewright.so: wants no Abseil headers
#
# These names serve add_subdirectory, FetchContent and, after `cmake --install`, find_package.

# For a library that runs where the distribution's Abseil is another one, such as a wheel. Debian's static libraries do
# not serve: they are not position-independent.
option(TILEWRIGHT_STATIC_ABSEIL "Link libtilewright.so with the static libraries of an Abseil built with PIC" OFF)

# The layers below `capi`, by the edges of src/LAYERS.
function(tilewright_layers_below name out)
  set(seen)
  set(queue ${name})
  while(queue)
    list(POP_FRONT queue layer)
    if(layer STREQUAL include OR layer IN_LIST seen)
      continue()
    endif()
    list(APPEND seen ${layer})
    file(STRINGS ${PROJECT_SOURCE_DIR}/src/LAYERS edges REGEX "^${layer} *:")
    string(REGEX REPLACE "^[a-z]+ *: *" "" edges "${edges}")
    string(REPLACE " " ";" edges "${edges}")
    list(APPEND queue ${edges})
  endwhile()
  set(${out} ${seen} PARENT_SCOPE)
endfunction()

# The archives of Abseil's targets and of what they need, in an order that a linker can read once.
function(tilewright_static_abseil out)
  set(archives)
  set(seen)
  set(queue ${ARGN})
  while(queue)
    list(POP_FRONT queue target)
    if(NOT target MATCHES "^absl::")
      continue()
    endif()
    get_target_property(needs ${target} INTERFACE_LINK_LIBRARIES)
    if(NOT target IN_LIST seen)
      list(APPEND seen ${target})
      if(needs)
        list(APPEND queue ${needs})
      endif()
    endif()
  endwhile()
  foreach(target IN LISTS seen)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL INTERFACE_LIBRARY)
      continue()
    endif()
    get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
    list(GET configurations 0 configuration)
    get_target_property(location ${target} IMPORTED_LOCATION_${configuration})
    string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive ${location})
    if(NOT EXISTS ${archive})
      message(FATAL_ERROR "TILEWRIGHT_STATIC_ABSEIL: ${archive} does not exist. Build Abseil with "
                          "-DCMAKE_POSITION_INDEPENDENT_CODE=ON and name it with -Dabsl_DIR=PREFIX/lib/cmake/absl.")
    endif()
    list(APPEND archives ${archive})
  endforeach()
  set(${out} "-Wl,--start-group" ${archives} "-Wl,--end-group" PARENT_SCOPE)
endfunction()

set(tilewright_public_abseil absl::status absl::statusor absl::strings absl::span)

file(GLOB tilewright_capi_sources CONFIGURE_DEPENDS src/capi/*.cc)
add_library(tilewright_capi OBJECT ${tilewright_capi_sources})
target_link_libraries(tilewright_capi PRIVATE tilewright_runtime)

tilewright_layers_below(capi tilewright_layers)
set(tilewright_objects)
foreach(layer IN LISTS tilewright_layers)
  if(TARGET tilewright_${layer})
    get_target_property(type tilewright_${layer} TYPE)
    if(NOT type STREQUAL INTERFACE_LIBRARY)
      list(APPEND tilewright_objects $<TARGET_OBJECTS:tilewright_${layer}>)
    endif()
  endif()
endforeach()

set(tilewright_version_script ${PROJECT_SOURCE_DIR}/src/capi/tilewright.map)
add_library(tilewright_shared SHARED ${tilewright_objects})
set_target_properties(tilewright_shared PROPERTIES
  LINKER_LANGUAGE CXX OUTPUT_NAME tilewright VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  EXPORT_NAME c BUILD_RPATH_USE_ORIGIN ON LINK_DEPENDS ${tilewright_version_script})
target_include_directories(tilewright_shared INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_options(tilewright_shared PRIVATE
  -Wl,--gc-sections -Wl,--as-needed -Wl,--version-script=${tilewright_version_script})
if(TILEWRIGHT_SANITIZE)
  target_link_options(tilewright_shared PRIVATE -fsanitize=${TILEWRIGHT_SANITIZE})
endif()
if(TILEWRIGHT_STATIC_ABSEIL)
  tilewright_static_abseil(tilewright_abseil_archives ${tilewright_abseil})
  target_link_libraries(tilewright_shared PRIVATE ${tilewright_abseil_archives})
else()
  target_link_libraries(tilewright_shared PRIVATE ${tilewright_abseil})
endif()
target_link_libraries(tilewright_shared PRIVATE OpenSSL::Crypto Threads::Threads ${CMAKE_DL_LIBS})

add_library(tilewright_cpp INTERFACE)
set_target_properties(tilewright_cpp PROPERTIES EXPORT_NAME tilewright)
target_link_libraries(tilewright_cpp INTERFACE tilewright_shared ${tilewright_public_abseil})
target_compile_features(tilewright_cpp INTERFACE cxx_std_20)

add_library(tilewright_static STATIC ${tilewright_objects})
set_target_properties(tilewright_static PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME tilewright EXPORT_NAME static)
target_include_directories(tilewright_static INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(tilewright_static PUBLIC ${tilewright_abseil} OpenSSL::Crypto Threads::Threads ${CMAKE_DL_LIBS})
target_compile_features(tilewright_static INTERFACE cxx_std_20)

add_library(tilewright::tilewright ALIAS tilewright_cpp)
add_library(tilewright::static ALIAS tilewright_static)
add_library(tilewright::c ALIAS tilewright_shared)
