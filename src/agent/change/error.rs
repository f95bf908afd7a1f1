//! Why a reply's change cannot be used, in words for its author.

/// Why a reply's change cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// More than [`super::MAX_REPLY_BYTES`].
    #[error("the reply has {bytes} bytes, of which at most {limit} are read: change less at once")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A NUL byte, which no source text has.
    #[error("the reply has a NUL character in line {line}: source is plain text")]
    Nul {
        /// The line in the reply, from 1.
        line: usize,
    },
    /// Reasoning that was never closed.
    #[error("the reply ends within `<think>`: the answer is missing. Think less, and answer in the form")]
    OnlyThought,
    /// Reasoning after an answer had begun.
    #[error("there is reasoning in line {line}, after the answer has begun: give the whole answer behind it")]
    ThoughtWithin {
        /// The line in the reply, from 1.
        line: usize,
    },
    /// No code at all.
    #[error(
        "there is no change in the reply: after `Change:` comes either one fenced block with the whole kernel file, \
         from `/*---` to its last line, or blocks of `<<<<<<< SEARCH`, `=======`, `>>>>>>> REPLACE`"
    )]
    NoChange,
    /// An honest `Change: none`: its author has no idea left for this target.
    #[error("nothing left to propose: {why}")]
    Declined {
        /// The reason, as its hypothesis; may be empty.
        why: String,
    },
    /// Fenced code that is not a kernel file.
    #[error(
        "the fenced code does not begin with the front matter `/*---`, so it is no whole kernel file; give the whole \
         file, or `<<<<<<< SEARCH` blocks for a part of it"
    )]
    NotWhole,
    /// More fenced code after the kernel file.
    #[error(
        "after the kernel file there is more fenced code in line {line}. Give one file and nothing after it; if the \
         file itself has a line of backticks, put it into a longer fence (````)"
    )]
    Several {
        /// The line in the reply, from 1.
        line: usize,
    },
    /// A file and blocks in one reply.
    #[error("the reply has both a whole file and `<<<<<<< SEARCH` blocks: give one of them")]
    Both,
    /// Headers again after the change began.
    #[error("a second answer begins in line {line} (`{header}`): one change at a time")]
    Second {
        /// The line in the reply, from 1.
        line: usize,
        /// The header.
        header: String,
    },
    /// A fence that is never closed: most likely the reply was cut off.
    #[error(
        "the code block that begins in line {line} is never closed: was the reply cut off? For a small change in a \
         long file use `<<<<<<< SEARCH` blocks"
    )]
    OpenFence {
        /// The line in the reply, from 1.
        line: usize,
    },
    /// Something like a marker that is none.
    #[error("line {line} is `{found}`; it must be exactly `{wanted}`")]
    Marker {
        /// The line in the reply, from 1.
        line: usize,
        /// The line.
        found: String,
        /// The marker that was probably meant.
        wanted: &'static str,
    },
    /// A marker where another one belongs.
    #[error("block {block}: `{found}` in line {line}, where {wanted} was expected")]
    Misplaced {
        /// The block, from 1.
        block: usize,
        /// The line in the reply, from 1.
        line: usize,
        /// The marker.
        found: &'static str,
        /// What belongs there.
        wanted: &'static str,
    },
    /// A block without an end: most likely the reply was cut off.
    #[error("block {block}, which begins in line {line}, has no `{missing}`: was the reply cut off?")]
    OpenBlock {
        /// The block, from 1.
        block: usize,
        /// The line in the reply, from 1.
        line: usize,
        /// The marker that is missing.
        missing: &'static str,
    },
    /// More than [`super::MAX_BLOCKS`].
    #[error("the reply has more than {limit} blocks: give the whole file instead")]
    TooManyBlocks {
        /// The limit.
        limit: usize,
    },
    /// Nothing to look for.
    #[error("block {block} searches for nothing: name the lines that it replaces, or the one next to an insertion")]
    EmptySearch {
        /// The block, from 1.
        block: usize,
    },
    /// The lines do not stand in the incumbent.
    #[error("block {block}: its lines do not stand in the file. {nearest}")]
    NotFound {
        /// The block, from 1.
        block: usize,
        /// The nearest place, and how it differs.
        nearest: String,
    },
    /// The lines stand in the incumbent more than once.
    #[error(
        "block {block}: its lines stand in the file {times} times, first in lines {first} and {second}: add lines \
         around them until they are the only ones"
    )]
    Ambiguous {
        /// The block, from 1.
        block: usize,
        /// How often they occur.
        times: usize,
        /// Line of the first, from 1.
        first: usize,
        /// Line of the second, from 1.
        second: usize,
    },
    /// Two blocks that replace the same lines.
    #[error("blocks {first} and {second} replace the same lines of the file: join them")]
    Overlap {
        /// The earlier block, from 1.
        first: usize,
        /// The later one, from 1.
        second: usize,
    },
    /// The candidate is the incumbent.
    #[error("the change leaves the file as it is")]
    ChangesNothing,
}
