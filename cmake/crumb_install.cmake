include(CMakePackageConfigHelpers)

set(crumb_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/crumb")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/crumb" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/crumb")
if(CRUMB_BUNDLED_XSIMD)
    install(DIRECTORY "${CRUMB_BUNDLED_XSIMD}/" DESTINATION "${CMAKE_INSTALL_DATADIR}/crumb/xsimd")
endif()

install(TARGETS crumb EXPORT crumb)
install(EXPORT crumb FILE crumbTargets.cmake NAMESPACE crumb:: DESTINATION "${crumb_package_dir}")
if(TARGET crumb_offline)
    # A file of its own, because who does not use it need not have Eigen.
    install(TARGETS crumb_offline EXPORT crumb_offline)
    install(EXPORT crumb_offline FILE crumbOfflineTargets.cmake NAMESPACE crumb:: DESTINATION "${crumb_package_dir}")
endif()

set(crumb_xsimd_dir "${CMAKE_INSTALL_DATADIR}/crumb/xsimd")
configure_package_config_file(
    "${PROJECT_SOURCE_DIR}/cmake/crumbConfig.cmake.in" "${PROJECT_BINARY_DIR}/crumbConfig.cmake"
    INSTALL_DESTINATION "${crumb_package_dir}"
    PATH_VARS crumb_xsimd_dir)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/crumbConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
    "${PROJECT_BINARY_DIR}/crumbConfig.cmake"
    "${PROJECT_BINARY_DIR}/crumbConfigVersion.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/crumb_header_only.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/crumb_kernels.cmake"
    DESTINATION "${crumb_package_dir}")
