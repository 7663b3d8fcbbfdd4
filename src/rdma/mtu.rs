//! Path MTU of RoCE from the MTU of the network device.

/// Payload sizes that InfiniBand knows, in bytes (`enum ib_mtu`).
const SIZES: [u32; 5] = [4096, 2048, 1024, 512, 256];

/// Headers that `rdma_rxe` reckons with (`RXE_MAX_HDR_LENGTH`,
/// `drivers/infiniband/sw/rxe/rxe_hdr.h`).
const RXE_HEADERS: u32 = 80;

/// Headers that the RDMA core, and with it the drivers of hardware, reckons
/// with (`iboe_get_mtu`, `include/rdma/ib_addr.h`): GRH, UDP, BTH, XRC,
/// `AtomicETH`, ICRC.
const CORE_HEADERS: u32 = 40 + 8 + 12 + 4 + 28 + 4;

/// The path MTU that a driver makes active for a network device's MTU, both in
/// bytes; Soft-RoCE makes 256 of anything too small. Drivers of hardware may
/// stay below.
#[must_use]
pub fn active(netdev_mtu: u32, rxe: bool) -> Option<u32> {
    let headers = if rxe { RXE_HEADERS } else { CORE_HEADERS };
    let room = netdev_mtu.saturating_sub(headers);
    let size = SIZES.into_iter().find(|size| *size <= room);
    size.or(rxe.then_some(SIZES[4]))
}

/// The next larger path MTU and the network device's MTU it takes, where there
/// is a larger one.
#[must_use]
pub fn larger(netdev_mtu: u32, rxe: bool) -> Option<(u32, u32)> {
    let headers = if rxe { RXE_HEADERS } else { CORE_HEADERS };
    let mut larger = SIZES.into_iter().rev();
    let size = larger.find(|size| size + headers > netdev_mtu)?;
    Some((size, size + headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `ibv_devinfo` printed for `rdma_rxe` of Linux 6.1.
    #[test]
    fn as_rxe_does() {
        for (netdev, path) in [
            (1500, 1024),
            (1103, 512),
            (1104, 1024),
            (2127, 1024),
            (2128, 2048),
            (4175, 2048),
            (4176, 4096),
            (335, 256),
            (336, 256),
            (9000, 4096),
        ] {
            assert_eq!(active(netdev, true), Some(path), "{netdev}");
        }
        assert_eq!(larger(1500, true), Some((2048, 2128)));
        assert_eq!(larger(9000, true), None);
    }

    #[test]
    fn as_the_core_does() {
        assert_eq!(active(1500, false), Some(1024));
        assert_eq!(active(4191, false), Some(2048));
        assert_eq!(active(4192, false), Some(4096));
        assert_eq!(active(300, false), None);
        assert_eq!(larger(1500, false), Some((2048, 2144)));
    }
}
