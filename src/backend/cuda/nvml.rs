//! What the driver's management library says of a device while it works: clocks, power, slow-downs, company.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

/// The management library, for one device. It is no part of measuring: where it is absent, nothing is known, and that is all.
#[derive(Debug)]
pub struct Gauge {
    nvml: Nvml,
    uuid: String,
}

/// A device at one moment; what is not known is `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gauged {
    /// Clock of the multiprocessors, MHz.
    pub clock_mhz: Option<u32>,
    /// Clock of the memory, MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Power it may draw, W.
    pub power_cap_w: Option<f64>,
    /// Power it draws, W.
    pub power_w: Option<f64>,
    /// Its temperature, °C.
    pub temperature_c: Option<u32>,
    /// What holds its clocks down.
    pub throttled: Option<Vec<&'static str>>,
    /// Other processes that have a context on it, our own family left out.
    pub others: Option<Vec<u32>>,
    /// Share of the last second in which something ran, %.
    pub busy_percent: Option<u32>,
}

/// What can hold clocks down, in words.
const REASONS: [(ThrottleReasons, &str); 6] = [
    (ThrottleReasons::SW_POWER_CAP, "power cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware thermal slowdown"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "software thermal slowdown"),
    (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "application clocks"),
    (ThrottleReasons::SYNC_BOOST, "sync boost"),
];

impl Gauge {
    /// For the device of this UUID (`GPU-…`); `None` where the library or the device is not there.
    #[must_use]
    pub fn open(uuid: &str) -> Option<Self> {
        let nvml = Nvml::init().ok()?;
        nvml.device_by_uuid(uuid).ok()?;
        Some(Self { nvml, uuid: uuid.to_owned() })
    }

    /// Whether heat or the hardware's own protection holds its clocks down now: a measurement is then worth repeating. The
    /// power cap is no such reason: large products run under it as a matter of course.
    #[must_use]
    pub fn is_slowed(&self) -> bool {
        let device = self.nvml.device_by_uuid(self.uuid.as_str());
        device.and_then(|device| device.current_throttle_reasons()).is_ok_and(slowed)
    }

    /// Bytes of memory that nobody has; `None` where the library does not say.
    #[must_use]
    pub fn free_memory(&self) -> Option<u64> {
        let device = self.nvml.device_by_uuid(self.uuid.as_str()).ok()?;
        device.memory_info().ok().map(|memory| memory.free)
    }

    /// How the device is now.
    #[must_use]
    pub fn read(&self) -> Gauged {
        let Ok(device) = self.nvml.device_by_uuid(self.uuid.as_str()) else { return Gauged::default() };
        let throttle = device.current_throttle_reasons().ok();
        Gauged {
            clock_mhz: device.clock_info(Clock::SM).ok(),
            memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
            power_cap_w: device.enforced_power_limit().ok().map(watts),
            power_w: device.power_usage().ok().map(watts),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
            throttled: throttle.map(words),
            others: device
                .running_compute_processes()
                .ok()
                .map(|all| all.into_iter().map(|process| process.pid).filter(|pid| !is_ours(*pid)).collect()),
            busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        }
    }
}

impl Gauged {
    /// What bears on times, in a line; `None` where nothing is known.
    #[must_use]
    pub fn line(&self) -> Option<String> {
        let mut parts = Vec::new();
        parts.extend(self.clock_mhz.map(|clock| format!("{clock} MHz")));
        parts.extend(self.power_w.zip(self.power_cap_w).map(|(power, cap)| format!("{power:.0} of {cap:.0} W")));
        parts.extend(
            self.throttled.iter().filter(|why| !why.is_empty()).map(|why| format!("held down by {}", why.join(", "))),
        );
        let others = self.others.as_ref().map_or(0, Vec::len);
        parts.extend((others > 0).then(|| format!("{others} other processes on it")));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Whether the process is this one, one that it descends from, or one that descends from it.
fn is_ours(pid: u32) -> bool {
    let own = std::process::id();
    pid == own || ancestors(pid, &parent).contains(&own) || ancestors(own, &parent).contains(&pid)
}

/// A process's parent, its parent, and so on.
fn ancestors(pid: u32, parent: &dyn Fn(u32) -> Option<u32>) -> Vec<u32> {
    // A process that ends meanwhile may have its number given to another, so that the way could lead in a circle.
    const MOST: usize = 64;
    std::iter::successors(parent(pid), |pid| parent(*pid)).take(MOST).collect()
}

/// The parent as the system tells it: the second field after the name, which stands in brackets and may hold any character.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    (parent > 1).then_some(parent)
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1e3
}

fn words(reasons: ThrottleReasons) -> Vec<&'static str> {
    REASONS.into_iter().filter(|(reason, _)| reasons.contains(*reason)).map(|(_, words)| words).collect()
}

fn slowed(reasons: ThrottleReasons) -> bool {
    reasons.intersects(
        ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::SW_THERMAL_SLOWDOWN,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_is_worth_a_repetition_and_the_power_cap_is_not() {
        assert_eq!(words(ThrottleReasons::SW_POWER_CAP | ThrottleReasons::GPU_IDLE), ["power cap"]);
        assert!(!slowed(ThrottleReasons::SW_POWER_CAP));
        assert!(slowed(ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN));
    }

    #[test]
    fn our_own_family_is_no_company() {
        let own = std::process::id();
        assert!(is_ours(own) && parent(own).is_none_or(is_ours) && !is_ours(u32::MAX));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        assert!(is_ours(child.id()));
        child.kill().expect("it runs");
        child.wait().expect("it ran");
        // 5 → 4 → 3, and a circle ends.
        assert_eq!(ancestors(5, &|pid| (pid > 3).then(|| pid - 1)), [4, 3]);
        assert_eq!(ancestors(5, &|pid| Some(pid)).len(), 64);
    }

    #[test]
    fn a_device_that_is_not_there_is_none() {
        assert!(Gauge::open("GPU-00000000-0000-0000-0000-000000000000").is_none());
    }
}
