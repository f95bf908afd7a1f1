//! The judge, as a run meets it: the worker process is asked about kernels that are dishonest, wrong, or honest in
//! unusual ways (the numbers are the rows of the list of defences), and about what is no request at all.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../common/slot.rs"]
mod slot;
#[path = "../common/small.rs"]
mod small;

mod attacked;
mod attacked_torch;
mod bench;
mod device;
mod dishonest;
mod elsewhere;
mod examined;
mod honest;
mod hostile;
mod loopholes;
mod protocol;
mod refused;
#[cfg(feature = "weakened")]
mod switches;
mod twins;
mod unrecognised;
mod wrong;
