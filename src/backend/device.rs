//! What a device is to the harness: memory, a place where compiled kernels run, and the time they take.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Call, CaseMemory, Fault, Image, MemoryError, Region, Span};
use crate::device::DeviceCard;
use crate::op::{DrawPlan, Stored};

/// A device.
pub trait Device: Sized {
    /// Compiled code of a kernel at one resolution, which runs there; cheap to clone.
    type Image: Image;
    /// Memory that kernels can reach.
    type Arena: Arena;
    /// Where compiled kernels run.
    type Host: Host<Arena = Self::Arena>;

    /// The device.
    fn card(&self) -> &DeviceCard;

    /// How large a case of the stages may be; larger shapes shrink by `Operation::shrink_to`.
    fn case_limits(&self) -> CaseLimits;

    /// Bytes that can still be had for tensors; `None` where nobody knows.
    fn free_memory(&self) -> Option<u64>;

    /// Gives back memory that is kept for later cases, where there is so much of it that other processes would miss it.
    fn give_back_memory(&self) {}

    /// Memory for `inputs` and `outputs` bytes, each a sum of [`Arena::footprint`]s for the same `placing`.
    ///
    /// # Errors
    /// A sentence: it is not to be had.
    fn arena(&self, inputs: usize, outputs: usize, placing: Placing) -> Result<Self::Arena, MemoryError>;

    /// A place for `images` to run, in which nothing is left of an earlier one: a fresh process (CPU), freshly loaded modules
    /// (GPU).
    ///
    /// # Errors
    /// [`StartError`].
    fn host(
        &self,
        images: &[&Self::Image],
        arena: &Self::Arena,
        conditions: &Conditions,
    ) -> Result<Self::Host, StartError>;

    /// How many launches a sample should hold when one takes `incumbent_us`, with `copies` rotated sets of buffers.
    fn calls_per_sample(&self, incumbent_us: f64, copies: usize) -> usize;

    /// Who the device is to other programs that are to work on it too, where it is not the processor: a GPU's UUID.
    fn device_name(&self) -> Option<String> {
        None
    }

    /// Whether each host is a process of its own. Where it is not, the confirmation of a gain runs in another worker process.
    fn hosts_are_processes(&self) -> bool;

    /// Whether a launch by itself takes longer than one in a row of others, by more than a launch of nothing does: where
    /// commands reach a device from outside, their way there shows only while nothing else keeps it busy. The parts of a
    /// model are then timed in rows of one kind.
    fn times_in_rows(&self) -> bool {
        false
    }

    /// Whether heat, or the hardware's own protection, holds the device's clocks down at this moment.
    fn is_slowed(&self) -> bool {
        false
    }

    /// What is known of the device's present state that bears on times (clock, power cap, throttling), in a line; it is kept
    /// with what was measured.
    fn condition(&self) -> Option<String> {
        None
    }

    /// Whether the device is lost to this process (a kernel faulted or hangs): the worker answers and ends, and a new one takes
    /// its place.
    fn is_lost(&self) -> bool;
}

/// What a host is like, beside the ordinary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Nothing in it is zero by luck; a processor's hosts are never otherwise.
    pub dirty: bool,
    /// Threads that a kernel runs on, where that is not one a core; for devices whose kernels are given threads.
    pub threads: Option<usize>,
    /// Between the launches of one call, what a launch leaves behind (shared, local and register memory) is overwritten with
    /// rubbish; for devices whose calls are several launches.
    pub rubbish_between: bool,
    /// Of calls that are recorded together, one may begin before the one in front of it has ended, where its kernel is proven to wait
    /// for that before it touches what may be written. Never where a candidate is timed: it would begin before its time does.
    pub overlapped: bool,
}

/// How buffers lie in an arena.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Placing {
    /// One after the other, between red zones.
    #[default]
    Packed,
    /// Each ends, as closely as its alignment allows, where memory begins that a kernel cannot touch.
    Fenced,
}

/// How large a case may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseLimits {
    /// Multiply-adds.
    pub macs: u64,
    /// Multiply-adds beyond which a case that is launched twice is compared with the oracle only once: where asking the
    /// oracle takes longer than everything else.
    pub macs_twice: u64,
    /// Elements of all tensors together.
    pub elements: u64,
    /// What part of both an adversarial input at a target's sizes may have; where that is less than they take, there are as
    /// many of each as there are sizes, each with one of them as it is.
    pub hostile_share: NonZeroU64,
    /// Multiply-adds that looking at some elements of a timed output may take.
    pub sample_macs: u64,
    /// Bytes of rotated buffers in timing, all shapes together.
    pub timed_bytes: u64,
    /// Launches on the same input that must give the same bits; where a launch takes microseconds, enough for a race to show.
    pub repeats: u32,
    /// Launches at the smallest shape beside those that are compared: what each of them keeps of the heap shows in many alone.
    pub again: u32,
    /// A kernel that does fewer operations a second than this is taken to hang.
    pub least_flops: u64,
    /// Whether kernels are given a number of threads (`Conditions::threads`).
    pub threads_vary: bool,
}

/// A stretch of memory that holds poison: random bits of which no element is a plausible result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poison {
    /// Where.
    pub span: Span,
    /// What the elements are.
    pub stored: Stored,
    /// What the bits are drawn from.
    pub key: u64,
}

/// Where poison was overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disturbed {
    /// Index of the stretch among those asked for: the first that differs.
    pub index: usize,
    /// Its first byte that differs.
    pub first: usize,
    /// Its last byte that differs.
    pub last: usize,
}

/// Elements of a buffer that are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gather {
    /// The buffer.
    pub span: Span,
    /// Bytes of an element.
    pub size: usize,
    /// Which elements.
    pub indices: Vec<usize>,
}

/// An element that takes the value of another one of its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The buffer.
    pub span: Span,
    /// Bytes of an element.
    pub size: usize,
    /// The element whose value it is.
    pub from: usize,
    /// The element that takes it.
    pub to: usize,
}

/// Memory that a process of the judge's may map.
#[derive(Debug)]
pub struct Lent {
    /// Whether it is a device's, to be mapped by its driver.
    pub device: bool,
    /// Which lie behind each other, gaps between them.
    pub pieces: Vec<Piece>,
}

/// A file of memory.
#[derive(Debug)]
pub struct Piece {
    /// The file.
    pub file: OwnedFd,
    /// Its place in what is lent, bytes.
    pub at: usize,
    /// Its length in bytes.
    pub bytes: usize,
}

/// Device memory in two regions, with red zones around every buffer. Work on it is done when a method that returns something
/// returns.
pub trait Arena {
    /// Bytes that a buffer of `bytes` takes, alignment, red zones and fences included.
    fn footprint(bytes: usize, placing: Placing) -> usize;
    /// The red zones before and after a placed buffer.
    fn red_zones(&self, span: &Span) -> [Span; 2];
    /// Places a buffer.
    ///
    /// # Errors
    /// A full region.
    fn place(&mut self, region: Region, bytes: usize) -> Result<Span, MemoryError>;
    /// Forgets all buffers.
    fn reset(&mut self);
    /// Writes values drawn as `plan` says; those that a file has drawn stand there already.
    fn draw(&mut self, span: &Span, plan: &DrawPlan);
    /// Writes poison.
    fn poison(&mut self, stretches: &[Poison]);
    /// Whether poison still stands; `None` where it does.
    fn disturbed(&mut self, stretches: &[Poison]) -> Option<Disturbed>;
    /// Writes zeros.
    fn zero(&mut self, span: &Span);
    /// The first byte that is not zero.
    fn not_zero(&mut self, span: &Span) -> Option<usize>;
    /// Fills a buffer from the host: `write` gets its bytes.
    fn fill(&mut self, span: &Span, write: &mut dyn FnMut(&mut [u8]));
    /// A copy of the bytes.
    fn read(&mut self, span: &Span) -> Vec<u8>;
    /// Elements of `size` bytes at these indices, one after the other.
    fn gather(&mut self, span: &Span, size: usize, indices: &[usize]) -> Vec<u8>;
    /// The same of several buffers at once.
    fn gather_all(&mut self, wanted: &[Gather]) -> Vec<Vec<u8>> {
        wanted.iter().map(|Gather { span, size, indices }| self.gather(span, *size, indices)).collect()
    }
    /// Copies elements over others of the same buffer.
    fn exchange(&mut self, changes: &[Exchange]) {
        for Exchange { span, size, from, to } in changes {
            let bytes = self.gather(span, *size, &[*from]);
            self.poke(span, to * size, &bytes);
        }
    }
    /// Overwrites bytes from `at` on.
    fn poke(&mut self, span: &Span, at: usize, bytes: &[u8]);
    /// A region for a process of the judge's to read, each buffer at its span's offset; `None` where a kernel that was launched may still
    /// write to it. Nothing of what was launched here runs any more.
    ///
    /// # Errors
    /// What the system or the driver refused.
    fn lend(&mut self, region: Region) -> Result<Option<Lent>, MemoryError>;
    /// Which of these inputs (an index) is not as the judge's last write left it. Where kernels cannot write to inputs, none.
    fn changed_input(&mut self, inputs: &[Span]) -> Option<usize>;
}

/// Where compiled kernels run.
pub trait Host {
    /// The memory it works on.
    type Arena: Arena;
    /// A copy's outputs out of the kernel's reach, or what identifies their every bit where a finished kernel has no reach.
    type Taken: PartialEq;

    /// One launch, timed.
    ///
    /// # Errors
    /// [`Fault`], after which this host is gone.
    fn launch(&mut self, call: &Call, limit: Duration) -> Result<Duration, Fault>;
    /// Launches back to back, timed together; what earlier work left in caches is out of them before.
    ///
    /// # Errors
    /// The same.
    fn run(&mut self, calls: &[Call], limit: Duration) -> Result<Duration, Fault>;
    /// Whether nothing runs on after a launch.
    ///
    /// # Errors
    /// The same.
    fn idle_check(&self) -> Result<(), Fault>;
    /// What this host's threads ran while no time was taken, where they have an account and launches were looked at with
    /// [`Host::idle_check`].
    fn outside(&self) -> Option<Outside> {
        None
    }
    /// What the thread that ran longest while no time was taken for the latest launches ran there, as [`Host::idle_check`] found it;
    /// zero where threads have no account.
    fn beside(&self) -> Duration {
        Duration::ZERO
    }
    /// How much of the device each kernel of `call` occupies, a sentence each, where the backend can tell.
    fn occupancy(&mut self, _call: &Call) -> Vec<String> {
        Vec::new()
    }
    /// The bytes of outputs that were taken, in the operation's order, where they are on this side; else they are where they were, out
    /// of reach of a kernel that has ended ([`Host::stands`]).
    fn bytes(_taken: &Self::Taken) -> Option<&[Vec<u8>]> {
        None
    }
    /// Whether the outputs of `copy` are still those that were taken.
    fn stands(taken: &Self::Taken, memory: &CaseMemory, arena: &mut Self::Arena, copy: usize) -> bool;
    /// Takes the outputs of `copy` as they are now.
    fn take(&self, memory: &CaseMemory, arena: &mut Self::Arena, copy: usize) -> Self::Taken;
}

/// CPU time, all threads together, that a host took beside the time that was taken for its launches: for getting ready and lying
/// down, and for any work that it hides there. It is to be compared with that of another kernel in the same turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outside {
    /// Launches or batches of them that were looked at.
    pub batches: usize,
    /// A batch's mean, the tenth of them with the most left out: on a virtual machine the host's doings stand there.
    pub typical: Duration,
    /// A batch's median.
    pub median: Duration,
}

/// Why there is no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The image cannot be loaded, or ended the process while being loaded.
    #[error("loading the kernel: {0}")]
    Kernel(String),
    /// The machine's failure.
    #[error("{0}")]
    Machine(String),
}
