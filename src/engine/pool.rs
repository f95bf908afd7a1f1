//! The workers of a run: who asks one has it to itself until the answer is there.
//!
//! A worker that died is started again, after pauses that grow; one that stays away is left out, and the run goes on with the others.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::device::DeviceCard;
use crate::worker::{Client, WorkerError};

/// Pauses before a worker is started again, each time longer: about three minutes in all, then it is left out.
const PAUSES_S: [u64; 8] = [0, 1, 2, 5, 10, 30, 60, 60];

/// The workers of a run; clones are the same workers.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    lanes: Mutex<Vec<Lane>>,
    /// Told whenever a worker becomes free or is left out.
    changed: Notify,
    /// How many wait that go before all others.
    urgent: AtomicUsize,
    /// Workers lost so far.
    lost: AtomicU64,
    began: Instant,
    device: DeviceCard,
}

/// A worker's place.
struct Lane {
    name: String,
    device: DeviceCard,
    /// It is here while nobody asks it anything.
    client: Option<Client>,
    doing: Doing,
    busy: Duration,
}

/// What a worker does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "doing", content = "what", rename_all = "snake_case")]
pub enum Doing {
    /// Nothing.
    Waiting,
    /// It was asked something.
    Asked(String),
    /// It died, and is being started again.
    Starting(String),
    /// It stayed away.
    Gone(String),
}

/// A worker as `status` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// How it was started.
    pub name: String,
    /// The device's name.
    pub device: String,
    /// What it does.
    #[serde(flatten)]
    pub doing: Doing,
    /// Share of the time since it was started in which it was asked something (0 to 1).
    pub busy: f64,
}

impl Pool {
    /// These workers, each with a name for `status`. All judge on devices of one kind ([`DeviceCard::differs_from`]).
    ///
    /// # Errors
    /// Two that differ, or no worker at all, in a sentence.
    pub fn new(workers: Vec<(String, Client)>) -> Result<Self, String> {
        let Some((_, first)) = workers.first() else { return Err("there is no worker".to_owned()) };
        let (device, judge) = (first.device().clone(), first.judge().to_owned());
        for (name, worker) in &workers {
            if let Some(why) = worker.device().differs_from(&device) {
                return Err(format!("the worker `{name}` cannot share a run with the first: {why}"));
            }
            if worker.judge() != judge {
                return Err(format!(
                    "the worker `{name}` is another build of Warpsmith than the first, so their verdicts cannot be compared"
                ));
            }
        }
        Ok(Self::alike(workers, device))
    }

    /// One worker.
    #[must_use]
    pub fn of_one(worker: Client) -> Self {
        let device = worker.device().clone();
        Self::alike(vec![("worker".to_owned(), worker)], device)
    }

    fn alike(workers: Vec<(String, Client)>, device: DeviceCard) -> Self {
        let lane = |(name, client): (String, Client)| Lane {
            name,
            device: client.device().clone(),
            client: Some(client),
            doing: Doing::Waiting,
            busy: Duration::ZERO,
        };
        let lanes = Mutex::new(workers.into_iter().map(lane).collect());
        let (changed, urgent) = (Notify::new(), AtomicUsize::new(0));
        Self(Arc::new(Shared { lanes, changed, urgent, lost: AtomicU64::new(0), began: Instant::now(), device }))
    }

    /// The device they judge on, by the first of them.
    #[must_use]
    pub fn device(&self) -> &DeviceCard {
        &self.0.device
    }

    /// How many there are, those that are being started again among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lanes().iter().filter(|lane| !matches!(lane.doing, Doing::Gone(_))).count()
    }

    /// How many died or were lost so far; one that is started again can be lost again.
    pub(super) fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What each does.
    #[must_use]
    pub fn status(&self) -> Vec<WorkerStatus> {
        let since = self.0.began.elapsed().as_secs_f64().max(1e-9);
        let status = |lane: &Lane| WorkerStatus {
            name: lane.name.clone(),
            device: lane.device.name.clone(),
            doing: lane.doing.clone(),
            busy: (lane.busy.as_secs_f64() / since).min(1.0),
        };
        self.0.lanes().iter().map(status).collect()
    }

    /// A worker to ask about `what`, as soon as one is free.
    ///
    /// # Errors
    /// None is left: why the last one is not.
    pub async fn worker(&self, what: &str) -> Result<Lease, WorkerError> {
        self.wait_for(what, Self::free_worker).await
    }

    /// The same, before all that wait for [`Self::worker`]: others wait for the answer.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn worker_first(&self, what: &str) -> Result<Lease, WorkerError> {
        let _waits = Urgent::new(&self.0);
        self.wait_for(what, Self::any_free).await
    }

    async fn wait_for(&self, what: &str, free: fn(&Self, &str) -> Option<Lease>) -> Result<Lease, WorkerError> {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(mut lease) = free(self, what) {
                // Nobody who is asked next may be blamed for that.
                let Some(death) = lease.died_idle() else { return Ok(lease) };
                lease.lost(&death);
                continue;
            }
            if let Some(why) = self.all_gone() {
                return Err(WorkerError::Start(why));
            }
            changed.await;
        }
    }

    /// A worker that is free now, and that nobody waits for who goes first.
    #[must_use]
    pub fn free_worker(&self, what: &str) -> Option<Lease> {
        if self.0.urgent.load(Ordering::Relaxed) > 0 { None } else { self.any_free(what) }
    }

    fn any_free(&self, what: &str) -> Option<Lease> {
        let mut lanes = self.0.lanes();
        let at = lanes.iter().position(|lane| lane.client.is_some())?;
        let client = lanes[at].client.take()?;
        lanes[at].doing = Doing::Asked(what.to_owned());
        Some(Lease { shared: self.0.clone(), at, client: Some(client), began: Instant::now() })
    }

    fn all_gone(&self) -> Option<String> {
        let lanes = self.0.lanes();
        let mut why = None;
        for lane in lanes.iter() {
            match &lane.doing {
                Doing::Gone(reason) => why = Some(reason.clone()),
                _ => return None,
            }
        }
        why
    }
}

/// Someone who goes first, for as long as they wait.
struct Urgent<'a>(&'a Shared);

impl<'a> Urgent<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.urgent.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.0.urgent.fetch_sub(1, Ordering::Relaxed);
        self.0.changed.notify_waiters();
    }
}

impl Shared {
    fn lanes(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_back(&self, at: usize, client: Option<Client>, doing: Doing, busy: Duration) {
        let lane = &mut self.lanes()[at];
        lane.client = client;
        lane.doing = doing;
        lane.busy += busy;
        self.changed.notify_waiters();
    }
}

/// A worker, for as long as it is asked.
pub struct Lease {
    shared: Arc<Shared>,
    at: usize,
    client: Option<Client>,
    began: Instant,
}

impl Lease {
    /// Says that the worker died: it is started again in the background.
    pub fn lost(mut self, why: &WorkerError) {
        let Some(mut client) = self.client.take() else { return };
        let (shared, at) = (self.shared.clone(), self.at);
        let name = shared.lanes()[at].name.clone();
        tracing::warn!(worker = name, %why, "a worker was lost");
        shared.lost.fetch_add(1, Ordering::Relaxed);
        shared.put_back(at, None, Doing::Starting(why.to_string()), self.began.elapsed());
        tokio::spawn(async move {
            let mut last = String::new();
            for pause in PAUSES_S {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                let judge = client.judge().to_owned();
                match client.restart().await {
                    Ok(()) if client.judge() != judge => {
                        last = "it has become another build of Warpsmith".to_owned();
                        break;
                    }
                    Ok(()) => match client.device().differs_from(&shared.device) {
                        None => return shared.put_back(at, Some(client), Doing::Waiting, Duration::ZERO),
                        Some(differs) => {
                            last = differs;
                            break;
                        }
                    },
                    Err(error) => {
                        last = error.to_string();
                        tracing::warn!(worker = name, why = last, "a worker does not start again");
                    }
                }
            }
            tracing::error!(worker = name, why = last, "a worker is left out");
            shared.put_back(at, None, Doing::Gone(last), Duration::ZERO);
        });
    }
}

impl Deref for Lease {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().unwrap_or_else(|| unreachable!("only `lost` and `drop` take it, and both end the lease"))
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().unwrap_or_else(|| unreachable!("only `lost` and `drop` take it, and both end the lease"))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            self.shared.put_back(self.at, Some(client), Doing::Waiting, self.began.elapsed());
        }
    }
}
