//! The judge for someone who edits: every save is held against the last one kept.

mod debounce;
mod judge;
mod saves;

pub use debounce::Debounce;
pub use judge::Watch;
pub use saves::Saves;
