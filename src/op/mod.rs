//! An operation is data: what must be computed, on which shapes, how exactly.
//!
//! `reference/<op>.toml` becomes an [`Operation`]; `reference/<op>.h` is its oracle source.

mod dtype;
mod shape;
mod spec;

pub use dtype::{Dtype, ElementType};
pub use shape::{Case, Shape, TargetShape};
pub use spec::{
    Adversarial, Distribution, Draw, OpError, Operation, Output, Pass, Role, RowScale, Scalar, Special, TensorSpec,
    Tolerance,
};
