# SPDX-License-Identifier: Apache-2.0
# Installed package, and the same package usable from the build tree.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/scape)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/scapeConfig.cmake.in ${PROJECT_BINARY_DIR}/scapeConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/scapeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)

install(TARGETS scape EXPORT scapeTargets)
install(EXPORT scapeTargets NAMESPACE scape:: DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/scapeConfig.cmake
              ${PROJECT_BINARY_DIR}/scapeConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/ScapeCuda.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindNCCL.cmake
              ${CMAKE_CURRENT_LIST_DIR}/ScapeMpi.cmake
        DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/scape
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
file(COPY ${CMAKE_CURRENT_LIST_DIR}/ScapeCuda.cmake ${CMAKE_CURRENT_LIST_DIR}/FindNCCL.cmake
          ${CMAKE_CURRENT_LIST_DIR}/ScapeMpi.cmake
     DESTINATION ${PROJECT_BINARY_DIR})
export(EXPORT scapeTargets NAMESPACE scape:: FILE ${PROJECT_BINARY_DIR}/scapeTargets.cmake)
