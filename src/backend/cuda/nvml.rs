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
    /// Whether that is heat or the hardware's own protection: a measurement is then worth repeating. The power cap is not:
    /// large products run under it as a matter of course.
    pub slowed: bool,
    /// Other processes that have a context on it.
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

    /// How the device is now.
    #[must_use]
    pub fn read(&self) -> Gauged {
        let Ok(device) = self.nvml.device_by_uuid(self.uuid.as_str()) else { return Gauged::default() };
        let throttle = device.current_throttle_reasons().ok();
        let own = std::process::id();
        Gauged {
            clock_mhz: device.clock_info(Clock::SM).ok(),
            memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
            power_cap_w: device.enforced_power_limit().ok().map(watts),
            power_w: device.power_usage().ok().map(watts),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
            throttled: throttle.map(words),
            slowed: throttle.is_some_and(slowed),
            others: device
                .running_compute_processes()
                .ok()
                .map(|all| all.into_iter().map(|process| process.pid).filter(|pid| *pid != own).collect()),
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
    fn a_device_that_is_not_there_is_none() {
        assert!(Gauge::open("GPU-00000000-0000-0000-0000-000000000000").is_none());
    }
}
