//! The process with NVRTC in it: `warpsmith nvrtc`. It reads hostile text, so it gives up everything it does not need.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::mpsc;

use super::binding::{Nvrtc, Output};
use super::frame::{self, Hello, Request, Response, Setup};
use crate::sandbox;

/// Address space, bytes: the library takes a tenth of a gigabyte, an honest kernel some tenths more.
const MEMORY: u64 = 4 << 30;

/// Headers whose contents stand before every kernel anyway, or that every CUDA program names out of habit: empty ones.
const EMPTY: [&str; 12] = [
    "stdint.h",
    "cstdint",
    "stddef.h",
    "cstddef",
    "math.h",
    "cmath",
    "float.h",
    "cfloat",
    "limits.h",
    "climits",
    "cuda_runtime.h",
    "device_launch_parameters.h",
];

/// Runs the hidden subcommand `nvrtc`. It speaks in frames over standard input and output and returns its exit status.
pub fn main() -> u8 {
    // SAFETY: closes what this process was not meant to have; nothing holds a descriptor yet but 0, 1 and 2.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    let Ok(mut output) = take_output() else { return 2 };
    let mut input = io::stdin();
    let Ok((setup, _)) = frame::read::<Setup>(&mut input) else { return 2 };
    let nvrtc = match start(&setup) {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            let hello = Hello { error: Some(error), version: (0, 0), archs: vec![] };
            let _ = frame::write(&mut output, &hello, &[]);
            return 2;
        }
    };
    let hello = Hello { error: None, version: nvrtc.version(), archs: nvrtc.archs() };
    if frame::write(&mut output, &hello, &[]).is_err() {
        return 2;
    }
    serve(&nvrtc, input, &mut output)
}

/// Takes standard output for the frames, so that nothing that NVRTC prints comes between.
fn take_output() -> io::Result<File> {
    let output = rustix::io::dup(io::stdout())?;
    let nowhere = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    Ok(File::from(output))
}

fn start(setup: &Setup) -> Result<Nvrtc, String> {
    let words = |error: io::Error| error.to_string();
    sandbox::set_limit(libc::RLIMIT_AS as _, MEMORY).map_err(words)?;
    sandbox::set_limit(libc::RLIMIT_FSIZE as _, 0).map_err(words)?;
    sandbox::no_dumps().map_err(words)?;
    sandbox::give_way();
    let nvrtc = Nvrtc::load(&setup.library, setup.builtins.as_deref())?;
    // Before the wall is up: the first compilation loads what the library brings itself.
    let warm = "extern \"C\" __global__ void nothing() {}";
    nvrtc.compile("warm.cu", warm, &["--minimal".to_owned()], &[], &[])?;
    sandbox::no_new_privileges().map_err(words)?;
    let read: Vec<&Path> = setup.read.iter().map(std::path::PathBuf::as_path).collect();
    sandbox::FileWall::new(&read, &[]).and_then(sandbox::FileWall::enter).map_err(|error| error.to_string())?;
    // A kernel without seccomp is reported by `sandbox::protections`.
    if let Ok(filter) = sandbox::offline_filter() {
        let _ = sandbox::install_on_this_thread(&filter);
    }
    Ok(nvrtc)
}

/// Compiles what is asked for until the input ends, and then ends at once, even within a compilation: whoever asked is gone.
fn serve(nvrtc: &Nvrtc, mut input: impl Read + Send + 'static, output: &mut impl Write) -> u8 {
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok(request) = frame::read::<Request>(&mut input) {
            if sender.send(request).is_err() {
                break;
            }
        }
        // SAFETY: ends the process without running anything of its own.
        unsafe { libc::_exit(0) }
    });
    while let Ok((request, source)) = requests.recv() {
        let answer = String::from_utf8(source)
            .map_err(|_| "a source that is not UTF-8".to_owned())
            .and_then(|source| compile(nvrtc, &request, &source));
        let sent = match answer {
            Ok(done) => {
                let response = Response {
                    error: None,
                    accepted: done.accepted,
                    log: cut(done.log),
                    names: done.names,
                    cubin: done.cubin.len(),
                };
                frame::write(output, &response, &[&done.cubin, &done.ptx])
            }
            Err(error) => frame::write(output, &Response { error: Some(error), ..Response::default() }, &[]),
        };
        if sent.is_err() {
            return 2;
        }
    }
    0
}

/// With the headers that came along, which no path leads to.
fn compile(nvrtc: &Nvrtc, request: &Request, source: &str) -> Result<Output, String> {
    let own = request.headers.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let headers: Vec<(&str, &str)> = EMPTY.map(|name| (name, "")).into_iter().chain(own).collect();
    nvrtc.compile(&request.name, source, &request.options, &request.names, &headers)
}

/// A log of bearable length: errors come first in it.
fn cut(mut log: String) -> String {
    const MOST: usize = 256 << 10;
    if log.len() > MOST {
        let end = (0..=MOST).rev().find(|at| log.is_char_boundary(*at)).unwrap_or_default();
        log.truncate(end);
    }
    log
}
