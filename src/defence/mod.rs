//! What keeps a wrong kernel out, one by one: so that tests can show that each of these keeps something out.
//!
//! In a build with the feature `weakened` each can be left out by name, through `WARPSMITH_WITHOUT` (names with commas
//! between them): a kernel that is refused elsewhere is then accepted (`tests/judge/switches.rs`, and the step `switches` of
//! `tests/gpu/check.sh`). Such a build is another program, with another hash, and keeps nothing: a run ends
//! where it would record its first keep. Without the feature all stand, and asking costs nothing.

/// The environment variable that names what is left out.
pub const WITHOUT: &str = "WARPSMITH_WITHOUT";

/// Defines the defences with their names, which are the kebab-case of what they are called here.
macro_rules! defences {
    ($($(#[doc = $says:literal])+ $variant:ident = $name:literal,)+) => {
        /// Something that keeps wrong or dishonest kernels out.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Defence {
            $($(#[doc = $says])+ $variant,)+
        }

        impl Defence {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// As it stands in [`WITHOUT`].
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

defences! {
    /// After every timed sample some elements of two of its launches are compared with the oracle.
    Samples = "samples",
    /// All of some timed outputs is compared with the oracle.
    WholeOutputs = "whole-outputs",
    /// Each timed launch is looked at for poison that it left.
    Poison = "poison",
    /// Timed launches have inputs that are not what they were.
    FreshInputs = "fresh-inputs",
    /// Hostile values come among ordinary ones.
    MixedInputs = "mixed-inputs",
    /// Where a gain is confirmed hostile inputs come between timed launches.
    Beside = "beside",
    /// Where a gain is confirmed some samples end early, and what they did not come to must not be there.
    ShortSamples = "short-samples",
    /// Results of 16 bits must not all be rounded to one side.
    Unbiased = "unbiased",
    /// Floating-point arguments have other values than the operation's own.
    OtherArguments = "other-arguments",
    /// Elements that are not the number nearest to the oracle's are counted.
    RoundsOnce = "rounds-once",
    /// The bound of sums in single precision follows the length of the sums.
    SignedTerms = "signed-terms",
    /// An input of which a few terms of each sum are not zero.
    FewTerms = "few-terms",
    /// The examination asks about hostile inputs at the timed sizes.
    TimedSizes = "timed-sizes",
    /// It asks about hostile inputs at larger sizes.
    LongerSizes = "longer-sizes",
    /// It asks about hostile inputs at the sweep's sizes.
    SweepSizes = "sweep-sizes",
    /// It asks with every buffer's end where memory ends.
    Fences = "fences",
    /// It asks with other numbers of threads.
    Threads = "threads",
    /// It asks the same many times.
    Repeats = "repeats",
    /// It asks again with other inputs in buffers that hold the results of a launch.
    UsedBuffers = "used-buffers",
    /// It asks about hostile inputs in the middle of a row of launches.
    InARow = "in-a-row",
    /// It asks about many drawn shapes.
    DrawnShapes = "drawn-shapes",
    /// It asks about hostile inputs on every way that a kernel takes at listed shapes.
    EachWay = "each-way",
    /// It asks about launches of more blocks than 16 bits count.
    ManyBlocks = "many-blocks",
    /// It asks about sizes far beyond the listed ones.
    FarSizes = "far-sizes",
    /// It asks about tensors beyond 2^31 elements.
    HugeTensors = "huge-tensors",
    /// A kernel refuses sizes by its domain alone.
    Domains = "domains",
    /// Sanitizers look while it asks.
    Instruments = "instruments",
    /// What a processor's kernel runs beside a sample's time is added to it.
    Charged = "charged",
    /// A processor's kernel makes no system calls of its own.
    SystemCalls = "system-calls",
    /// The system's clock is not mapped where a processor's kernel runs.
    Clocks = "clocks",
    /// What a launch leaves in a processor's registers is looked at, and what could count launches is cleared.
    Registers = "registers",
    /// A processor's kernel gives back what it takes from the heap.
    Leaks = "leaks",
    /// Only pages that hold buffers can be touched by a processor's kernel.
    BufferPages = "buffer-pages",
    /// What follows the last buffer on its page is checked.
    Tails = "tails",
    /// The preprocessor's output is read, beside the text.
    Preprocessed = "preprocessed",
    /// A GPU's kernel cannot write to its inputs.
    ReadOnlyInputs = "read-only-inputs",
    /// What lies behind a GPU's last buffer is checked.
    BehindBuffers = "behind-buffers",
    /// What is not a GPU candidate's business is unmapped or sealed while it runs.
    Sealing = "sealing",
    /// The addresses of constants and parameters may only be loaded from.
    ConstantAddresses = "constant-addresses",
    /// A launch that may begin early must wait for the one in front of it.
    Waits = "waits",
    /// A sum by the last block must have a fence, and a loop waits for what it has the copy engine store.
    LastBlockFences = "last-block-fences",
    /// Shared memory is filled with rubbish before each sample, what is below a kernel's own as well.
    SharedRubbish = "shared-rubbish",
    /// An address in shared memory comes from what is declared there.
    SharedAddresses = "shared-addresses",
}

impl Defence {
    /// Whether it is in force.
    #[cfg(not(feature = "weakened"))]
    pub const fn stands(self) -> bool {
        true
    }

    /// Whether it is in force: whether the environment does not name it.
    #[cfg(feature = "weakened")]
    pub fn stands(self) -> bool {
        use std::sync::OnceLock;
        static LEFT_OUT: OnceLock<String> = OnceLock::new();
        let left_out = LEFT_OUT.get_or_init(|| std::env::var(WITHOUT).unwrap_or_default());
        !left_out.split(',').any(|name| name == self.name())
    }
}

/// Why this program must not keep anything; `None` for those that people use.
pub const fn weakened() -> Option<&'static str> {
    if cfg!(feature = "weakened") {
        Some("this is a build for tests, whose defences can be left out one by one; it records nothing")
    } else {
        None
    }
}

/// Which readers these are: one more whenever they refuse what they accepted before.
const READERS: u32 = 3;

/// Who read a kernel before it was compiled: what was read by other readers, or with a defence left out, is read again.
pub fn readers() -> String {
    let left_out = weakened().and_then(|_| std::env::var(WITHOUT).ok());
    format!("{}.{READERS} {}", env!("CARGO_PKG_VERSION"), left_out.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_defence_has_a_name_of_its_own_and_stands_unless_it_is_named() {
        for (index, defence) in Defence::ALL.iter().enumerate() {
            assert!(Defence::ALL[..index].iter().all(|other| other.name() != defence.name()), "{defence:?}");
            assert!(defence.stands(), "{defence:?}");
        }
    }
}
