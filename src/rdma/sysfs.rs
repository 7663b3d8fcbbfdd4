//! What `/sys/class/infiniband` says about devices, without any library.
