//! What this process and the one with NVRTC in it say to each other: frames of JSON with bytes behind it.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest JSON, in bytes.
const MAX_JSON: u32 = 4 << 20;
/// The longest bytes.
const MAX_BYTES: u32 = 256 << 20;

/// The first frame to the process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// NVRTC.
    pub(super) library: std::path::PathBuf,
    /// Its built-ins.
    pub(super) builtins: Option<std::path::PathBuf>,
    /// Folders it may read while it compiles.
    pub(super) read: Vec<std::path::PathBuf>,
}

/// The first frame from it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Hello {
    /// What went wrong; everything else is empty then.
    pub(super) error: Option<String>,
    /// NVRTC's version.
    pub(super) version: (u32, u32),
    /// What it compiles for, as 80, 90.
    pub(super) archs: Vec<u32>,
}

/// What to compile; the bytes are the source.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Request {
    /// The file's name in messages.
    pub(super) name: String,
    /// NVRTC's options.
    pub(super) options: Vec<String>,
    /// Name expressions of the kernels that are launched.
    pub(super) names: Vec<String>,
    /// Headers that the source may include beside CUDA's: names and texts.
    pub(super) headers: Vec<(String, String)>,
}

/// What came of it; the bytes are the cubin, then the PTX.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Response {
    /// NVRTC's own failure.
    pub(super) error: Option<String>,
    /// Whether the source was accepted.
    pub(super) accepted: bool,
    /// The compiler's words.
    pub(super) log: String,
    /// The lowered name of each expression.
    pub(super) names: Vec<String>,
    /// Bytes of the cubin.
    pub(super) cubin: usize,
}

/// Writes a frame.
pub(super) fn write(to: &mut impl Write, message: &impl Serialize, parts: &[&[u8]]) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let too_long = || io::Error::other("a frame that is too long");
    let lengths = [u32::try_from(json.len()), u32::try_from(bytes)].map(|n| n.map_err(|_| too_long()));
    let mut frame = Vec::with_capacity(8 + json.len() + bytes);
    for length in lengths {
        frame.extend(length?.to_le_bytes());
    }
    frame.extend(json);
    for part in parts {
        frame.extend_from_slice(part);
    }
    to.write_all(&frame)?;
    to.flush()
}

/// Reads a frame; the other side is not believed to keep to any length.
pub(super) fn read<M: DeserializeOwned>(from: &mut impl Read) -> io::Result<(M, Vec<u8>)> {
    let mut lengths = [0u8; 8];
    from.read_exact(&mut lengths)?;
    let [json, bytes] = [0, 4].map(|at| {
        let mut word = [0; 4];
        word.copy_from_slice(&lengths[at..at + 4]);
        u32::from_le_bytes(word)
    });
    if json > MAX_JSON || bytes > MAX_BYTES {
        return Err(io::Error::other("a frame that is too long"));
    }
    let mut take = |length: u32| -> io::Result<Vec<u8>> {
        // Grown as it comes, so that a length alone costs nothing.
        let mut contents = Vec::new();
        from.by_ref().take(length.into()).read_to_end(&mut contents)?;
        if contents.len() == length as usize { Ok(contents) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    };
    let text = take(json)?;
    let contents = take(bytes)?;
    Ok((serde_json::from_slice(&text)?, contents))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_frame_arrives_as_it_was_sent_and_a_cut_or_huge_one_does_not() {
        let mut sent = Vec::new();
        write(&mut sent, &Response { log: "x".into(), cubin: 2, ..Response::default() }, &[b"ab", b"c"]).unwrap();
        let (response, bytes): (Response, _) = read(&mut &sent[..]).unwrap();
        assert_eq!((response.log.as_str(), response.cubin, &bytes[..]), ("x", 2, &b"abc"[..]));
        assert!(read::<Response>(&mut &sent[..sent.len() - 1]).is_err());
        assert!(read::<Response>(&mut &[255u8; 64][..]).is_err());
    }
}
