//! Devices, protection domains, registered memory and completion queues: each
//! is released when its owner goes, children before parents.
#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    ptr::{self, NonNull},
    sync::Arc,
};

use rdma_sys::{
    ibv_access_flags, ibv_alloc_pd, ibv_atomic_cap, ibv_close_device, ibv_context, ibv_cq,
    ibv_create_cq, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_cq, ibv_device_attr,
    ibv_free_device_list, ibv_get_device_list, ibv_get_device_name, ibv_mr, ibv_open_device,
    ibv_pd, ibv_poll_cq, ibv_port_attr, ibv_query_device, ibv_query_port, ibv_reg_mr, ibv_wc,
    ibv_wc_flags, ibv_wc_opcode,
};

use crate::rdma::ledger::WcStatus;

use super::{
    error::{Facts, Fault, Step, VerbsError},
    memory::Memory,
    plan::mtu_bytes,
};

/// An open device.
#[derive(Debug)]
pub(super) struct Context {
    ptr: NonNull<ibv_context>,
}

// SAFETY: every function of libibverbs is thread-safe (ibv_open_device(3) and
// the rdma-core documentation), and the pointer is owned by this value.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a port says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct PortState {
    /// `enum ibv_port_state`; 4 is active.
    pub state: u32,
    /// Bytes.
    pub active_mtu: Option<u32>,
    /// Largest message in bytes.
    pub max_message: u32,
}

impl PortState {
    pub const ACTIVE: u32 = 4;

    pub const fn words(self) -> &'static str {
        match self.state {
            1 => "DOWN",
            2 => "INIT",
            3 => "ARMED",
            4 => "ACTIVE",
            5 => "ACTIVE_DEFER",
            _ => "unknown",
        }
    }
}

/// What a device can hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Work requests in one queue.
    pub work_requests: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// READs and atomics that a responder serves at once.
    pub served_reads: u8,
    /// READs and atomics that a requester has outstanding.
    pub issued_reads: u8,
    pub atomics: bool,
}

/// Active MTU of a port in bytes, as the device itself says; `None` where it
/// cannot be asked.
#[must_use]
pub fn active_mtu(device: &str, port: u8) -> Option<u32> {
    Context::open(device).ok()?.port(port).ok()?.active_mtu
}

impl Context {
    /// Opens the device of that name.
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let facts = Facts {
            device: name.to_owned(),
            ..Facts::default()
        };
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let list = unsafe { ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(Fault::last(Step::ListDevices).explain(&facts));
        }
        let mut names = Vec::new();
        let mut opened = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries, each a valid device until
            // the list is freed.
            let device = unsafe { *list.add(index) };
            if device.is_null() {
                break;
            }
            // SAFETY: the name is a NUL-terminated array within the device.
            let found = unsafe { CStr::from_ptr(ibv_get_device_name(device)) };
            let found = found.to_string_lossy();
            if found == name {
                // SAFETY: as above; an opened device outlives the list.
                let context = unsafe { ibv_open_device(device) };
                opened = Some(NonNull::new(context).ok_or_else(|| Fault::last(Step::OpenDevice)));
            }
            names.push(found.into_owned());
        }
        // SAFETY: from ibv_get_device_list, and not used any more.
        unsafe { ibv_free_device_list(list) };
        match opened {
            Some(Ok(ptr)) => Ok(Arc::new(Self { ptr })),
            Some(Err(fault)) => Err(fault.explain(&facts)),
            None => Err(no_such_device(name, &names)),
        }
    }

    pub const fn as_ptr(&self) -> *mut ibv_context {
        self.ptr.as_ptr()
    }

    pub fn port(&self, port: u8) -> Result<PortState, Fault> {
        // The exported function fills the older, shorter structure: the rest
        // must be zero beforehand.
        // SAFETY: integers only, for which zero is a value.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the structure begins with the older
        // one and is larger.
        let returned = unsafe { ibv_query_port(self.as_ptr(), port, (&raw mut attr).cast()) };
        Fault::check(Step::QueryPort, returned)?;
        Ok(PortState {
            state: attr.state,
            active_mtu: mtu_bytes(attr.active_mtu),
            max_message: attr.max_msg_sz,
        })
    }

    pub fn limits(&self) -> Result<Limits, Fault> {
        // SAFETY: integers only, for which zero is a value.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, `attr` outlives the call.
        let returned = unsafe { ibv_query_device(self.as_ptr(), &raw mut attr) };
        Fault::check(Step::QueryDevice, returned)?;
        let byte = |value: i32| value.clamp(0, 255) as u8;
        Ok(Limits {
            work_requests: attr.max_qp_wr.max(0) as u32,
            completions: attr.max_cqe.max(0) as u32,
            served_reads: byte(attr.max_qp_rd_atom),
            issued_reads: byte(attr.max_qp_init_rd_atom),
            atomics: attr.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE,
        })
    }
}

fn no_such_device(name: &str, names: &[String]) -> VerbsError {
    let (said, cause) = if names.is_empty() {
        (
            "this machine has no RDMA device".to_owned(),
            "for Soft-RoCE on a network device: sudo rdma link add rxe0 type rxe netdev IF"
                .to_owned(),
        )
    } else {
        (
            "there is no RDMA device of that name".to_owned(),
            format!("there is {}", names.join(", ")),
        )
    };
    VerbsError {
        device: name.to_owned(),
        step: Step::OpenDevice,
        errno: None,
        said,
        cause,
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by `open`; everything made from it holds an `Arc` to
        // it and is gone.
        unsafe { ibv_close_device(self.as_ptr()) };
    }
}

/// A protection domain: what memory and queue pairs must share.
#[derive(Debug)]
pub(super) struct Pd {
    ptr: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Pd {}
// SAFETY: as for `Context`.
unsafe impl Sync for Pd {}

impl Pd {
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, Fault> {
        // SAFETY: the context is open.
        let pd = unsafe { ibv_alloc_pd(context.as_ptr()) };
        Ok(Arc::new(Self {
            ptr: NonNull::new(pd).ok_or_else(|| Fault::last(Step::AllocPd))?,
            context: Arc::clone(context),
        }))
    }

    pub const fn as_ptr(&self) -> *mut ibv_pd {
        self.ptr.as_ptr()
    }

    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; memory and queue pairs in it hold an
        // `Arc` to it and are gone.
        unsafe { ibv_dealloc_pd(self.as_ptr()) };
    }
}

/// Every access, also the peer's; atomics only where the device knows them.
pub(super) const fn access(atomics: bool) -> u32 {
    let atomic = if atomics {
        ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0
    } else {
        0
    };
    atomic
        | ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
}

/// Registered memory of its own.
#[derive(Debug)]
pub(super) struct Mr {
    ptr: NonNull<ibv_mr>,
    memory: Memory,
    /// Held, so that the domain outlives the region.
    _pd: Arc<Pd>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Mr {}
// SAFETY: as for `Context`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `len` bytes (at least one word) of zeroed memory for every
    /// access, also the peer's.
    pub fn new(pd: &Arc<Pd>, len: usize, atomics: bool) -> Result<Self, Fault> {
        let memory = Memory::new(len)?;
        // SAFETY: the memory lives until after ibv_dereg_mr; the domain is
        // alive.
        let mr = unsafe {
            ibv_reg_mr(
                pd.as_ptr(),
                memory.as_ptr(),
                memory.len(),
                access(atomics) as i32,
            )
        };
        Ok(Self {
            ptr: NonNull::new(mr).ok_or_else(|| Fault::last(Step::RegisterMemory))?,
            memory,
            _pd: Arc::clone(pd),
        })
    }

    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    pub const fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Address of the first byte, as the peer names it.
    pub fn va(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.memory.len()
    }

    pub const fn lkey(&self) -> u32 {
        // SAFETY: registered and not yet deregistered.
        unsafe { self.ptr.as_ref().lkey }
    }

    pub const fn rkey(&self) -> u32 {
        // SAFETY: registered and not yet deregistered.
        unsafe { self.ptr.as_ref().rkey }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: registered by `new`, and nothing names it any more.
        if unsafe { ibv_dereg_mr(self.ptr.as_ptr()) } != 0 {
            // Memory that the device may still write to is better lost.
            self.memory.abandon();
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    ptr: NonNull<ibv_cq>,
    /// Held, so that the device outlives the queue.
    _context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Cq {}
// SAFETY: as for `Context`.
unsafe impl Sync for Cq {}

/// A completion, as far as it is valid: on an error only the number and the
/// status are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub id: u64,
    pub status: WcStatus,
    /// Bytes received; 0 on an error and for operations of our own.
    pub bytes: u32,
    /// Immediate data received.
    pub immediate: Option<u32>,
}

impl Done {
    /// A place for a completion.
    pub const EMPTY: Self = Self {
        id: 0,
        status: WcStatus::SUCCESS,
        bytes: 0,
        immediate: None,
    };
}

/// Completions taken from a queue at once.
pub(super) const POLLED: usize = 16;

impl Cq {
    pub fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<Self>, Fault> {
        // SAFETY: the context is open; no channel, no context pointer.
        let cq = unsafe {
            ibv_create_cq(
                context.as_ptr(),
                i32::try_from(entries).unwrap_or(i32::MAX),
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        };
        Ok(Arc::new(Self {
            ptr: NonNull::new(cq).ok_or_else(|| Fault::last(Step::CreateCq))?,
            _context: Arc::clone(context),
        }))
    }

    pub const fn as_ptr(&self) -> *mut ibv_cq {
        self.ptr.as_ptr()
    }

    /// Takes what has completed; returns how many entries of `out` are new.
    pub fn poll(&self, out: &mut [Done; POLLED]) -> Result<usize, Fault> {
        // SAFETY: integers and a union of integers, for which zero is a value.
        let mut entries: [ibv_wc; POLLED] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is alive, and there is room for that many.
        let returned = unsafe { ibv_poll_cq(self.as_ptr(), POLLED as i32, entries.as_mut_ptr()) };
        let Ok(count) = usize::try_from(returned) else {
            // The return value is -1 or a negated error number, by driver.
            return Err(Fault {
                step: Step::Poll,
                errno: libc::EIO,
            });
        };
        for (done, entry) in out.iter_mut().zip(&entries).take(count) {
            *done = Done {
                id: entry.wr_id,
                status: WcStatus(entry.status),
                ..Done::EMPTY
            };
            if done.status == WcStatus::SUCCESS && entry.opcode & ibv_wc_opcode::IBV_WC_RECV != 0 {
                done.bytes = entry.byte_len;
                if entry.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0 {
                    // SAFETY: both members of the union are a plain u32.
                    let raw = unsafe { entry.imm_data_invalidated_rkey_union.imm_data };
                    done.immediate = Some(u32::from_be(raw));
                }
            }
        }
        Ok(count.min(POLLED))
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: created by `new`; queue pairs on it hold an `Arc` to it and
        // are gone.
        unsafe { ibv_destroy_cq(self.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True on every machine, with devices and without.
    #[test]
    fn a_device_that_is_not_there_is_an_error_with_a_repair() {
        let error = Context::open("no_such_device").unwrap_err();
        assert!([Step::ListDevices, Step::OpenDevice].contains(&error.step));
        assert!(!error.cause.is_empty(), "{error}");
    }
}
