//! The language-model agent against a scripted endpoint over real HTTP.
#![allow(clippy::unwrap_used)]

#[path = "../common/endpoint.rs"]
mod endpoint;
#[allow(dead_code)]
#[path = "../common/kernels.rs"]
mod kernels;

mod check;
mod failures;
mod fallback;
mod place;
mod pool;
mod records;
mod repairs;
