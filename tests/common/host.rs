//! A process that runs small C functions as kernels.
#![allow(dead_code)]

use std::time::Duration;

use warpsmith::backend::cpu::{Arena, Compiler, Host, Image, Limits};
use warpsmith::backend::{Call, Fault, Region, Span};
use warpsmith::sandbox::protections;

pub const LIMIT: Duration = Duration::from_secs(20);

const TRAMPOLINE: &str = "__attribute__((visibility(\"default\")))\n\
    void ws_entry(void *const *p, const int64_t *i, const float *f) { kernel(p[0], p[1], i[0], f[0]); }\n";

pub struct Bench {
    pub cache: tempfile::TempDir,
    pub compiler: Compiler,
    pub arena: Arena,
    pub x: Span,
    pub y: Span,
}

pub fn limits() -> Limits {
    Limits { executable: Some(env!("CARGO_BIN_EXE_warpsmith").into()), ..Limits::default() }
}

pub fn available(name: &str) -> bool {
    protections().iter().any(|p| p.name == name && p.available)
}

impl Bench {
    pub fn new(n: usize) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let compiler = Compiler::new(cache.path()).unwrap();
        let bytes = Arena::footprint(n * 4);
        let mut arena = Arena::new(bytes, bytes).unwrap();
        let x = arena.place(Region::Inputs, n * 4).unwrap();
        let y = arena.place(Region::Outputs, n * 4).unwrap();
        for (i, four) in arena.bytes_mut(&x).chunks_exact_mut(4).enumerate() {
            four.copy_from_slice(&(i as f32).to_le_bytes());
        }
        Self { cache, compiler, arena, x, y }
    }

    /// The image of a C function `kernel(const float *x, float *y, int64_t n, float s)`.
    pub fn image(&self, text: &str) -> Image {
        let source = format!(
            "#include <stdint.h>\n#include <math.h>\n#include <stdlib.h>\n#include <string.h>\n\
             void ws_parallel(int64_t n, void (*body)(int64_t, int64_t, void *), void *context);\n{text}\n{TRAMPOLINE}"
        );
        self.compiler.compile_candidate("kernel", "", &source, &[]).unwrap()
    }

    pub fn host(&self, texts: &[&str]) -> Host {
        let images: Vec<Image> = texts.iter().map(|text| self.image(text)).collect();
        Host::start(&images.iter().collect::<Vec<_>>(), &self.arena, &limits()).unwrap()
    }

    pub fn call(&self, image: usize) -> Call {
        let n = (self.x.bytes / 4) as i64;
        Call { image, pointers: vec![Some(self.x), Some(self.y)], ints: vec![n], floats: vec![2.0], zeroed: vec![] }
    }

    pub fn output(&self) -> Vec<f32> {
        self.arena.bytes(&self.y).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// How a single launch of `text` ends.
    pub fn fault(&self, text: &str) -> Fault {
        let mut host = self.host(&[text]);
        let fault = host.launch(&self.call(0), LIMIT).unwrap_err();
        assert!(!host.is_alive());
        assert!(matches!(host.launch(&self.call(0), LIMIT), Err(Fault::Host(_))));
        fault
    }
}

pub const SCALE: &str = "
    struct job { const float *x; float *y; float s; };
    static void body(int64_t begin, int64_t end, void *context) {
        const struct job *job = context;
        for (int64_t i = begin; i < end; i++) job->y[i] = job->x[i] * job->s;
    }
    static void kernel(const float *x, float *y, int64_t n, float s) {
        struct job job = {x, y, s};
        ws_parallel(n, body, &job);
    }";

pub const EMPTY: &str =
    "static void kernel(const float *x, float *y, int64_t n, float s) { (void)x; (void)y; (void)n; (void)s; }";
