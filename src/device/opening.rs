//! When a device is opened, and whether what is known of it is believed.

/// When a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// At once; its ceilings are those that were measured before, if they were.
    Now,
    /// At once, and its ceilings are measured anew.
    Recalibrating,
    /// While the first kernel is being compiled, where its ceilings and its free memory are known without: a third of a second
    /// that a verdict which is wanted now need not wait.
    Meanwhile,
}
