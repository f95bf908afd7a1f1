//! Backends: compile, allocate, launch, time.

pub mod cpu;
