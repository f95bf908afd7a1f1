//! An operation is data: what must be computed, on which shapes, how exactly.
//!
//! `reference/<op>.toml` becomes an [`Operation`]; `reference/<op>.h` is its oracle source.

mod check;
mod draw;
#[cfg(test)]
mod draw_tests;
mod dtype;
mod error;
mod function;
mod hostile;
mod load;
mod measure;
mod mixed;
mod product;
mod sample;
mod shape;
mod shrink;
mod source;
mod spec;

pub use check::is_identifier as is_name;
pub use draw::{DrawPlan, draw};
pub use dtype::{Dtype, ElementType, Stored};
pub use error::{OpError, toml_reason};
pub use product::{Matrices, ProductLayout};
pub use sample::{Sample, SampleStep};
pub use shape::{Case, Shape, TargetShape};
pub use source::OpSource;
pub use spec::{
    Adversarial, Bar, Distribution, Draw, FewTerms, ItemsPass, Operation, OracleKind, Output, Pass, ProductPass, Role,
    RowScale, Scalar, Special, TensorSpec, Tolerance,
};

#[cfg(test)]
pub(crate) mod samples;
