//! Warpsmith.
fn main() {}
