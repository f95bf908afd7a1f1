//! The requests in flight, what came of them, and what waits for a free place.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tokio::task::{Id, JoinSet};

use super::conversation::{self, Draft, Ended, Task};
use super::direction::{self, Family};
use super::failure::{Failure, Kind};
use super::session::Session;
use super::{Language, TUNER};
use crate::agent::{Brief, Failed, Offer, Proposal};

/// Proposals whose conversation is kept, in case they come back to be mended.
const KEPT: usize = 64;

/// The requests in flight. They end with it.
pub struct Pool {
    size: usize,
    op: String,
    tasks: JoinSet<Ended>,
    running: HashMap<Id, Running>,
    /// Ended, and not yet looked at.
    ended: VecDeque<(Running, Ended)>,
    /// Candidates that nobody has asked for yet.
    drafts: VecDeque<Draft>,
    /// Tickets that come back no more.
    given_up: VecDeque<u64>,
    /// To be mended, as soon as there is a place.
    to_mend: VecDeque<Task>,
    /// What was proposed: the task and the reply, by ticket.
    kept: BTreeMap<u64, (Task, String)>,
}

/// What is known of a request in flight.
#[derive(Debug, Clone)]
struct Running {
    ticket: u64,
    model: String,
    mends: bool,
    family: Option<Family>,
}

impl Pool {
    /// A pool with room for `size` requests.
    pub fn new(size: usize) -> Self {
        Self {
            size: size.max(1),
            op: String::new(),
            tasks: JoinSet::new(),
            running: HashMap::new(),
            ended: VecDeque::new(),
            drafts: VecDeque::new(),
            given_up: VecDeque::new(),
            to_mend: VecDeque::new(),
            kept: BTreeMap::new(),
        }
    }

    /// The operation that the requests are about.
    pub fn op(&self) -> &str {
        &self.op
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Waits until a request ends. Dropped halfway, it loses nothing.
    pub async fn wait(&mut self) {
        if let Some(done) = self.tasks.join_next_with_id().await {
            self.note(done);
        }
    }

    /// Takes a proposal back: `false` where its conversation is no longer known.
    pub fn mend(&mut self, failed: &Failed) -> bool {
        let proposal = &failed.proposal;
        if proposal.by.as_deref() == Some(TUNER) {
            return false;
        }
        let Some((task, said)) = self.kept.get(&proposal.ticket) else { return false };
        self.to_mend.push_back(Task { mend: Some((failed.clone(), said.clone())), ..task.clone() });
        true
    }

    fn note(&mut self, done: Result<(Id, Ended), tokio::task::JoinError>) {
        let (id, ended) = match done {
            Ok(done) => done,
            // A panic, which is a fault in this program: the request is lost, and not the night.
            Err(error) => (error.id(), Ended::Failed(Failure::new(Kind::Odd, "the request ended unexpectedly"))),
        };
        if let Some(running) = self.running.remove(&id) {
            self.ended.push_back((running, ended));
        }
    }

    fn spawn(&mut self, session: &Arc<Session>, task: Task, family: Option<Family>) {
        let running = Running { ticket: task.ticket, model: task.model.clone(), mends: task.mend.is_some(), family };
        let handle = self.tasks.spawn(conversation::hold(Arc::clone(session), task));
        self.running.insert(handle.id(), running);
    }

    /// Candidates that nobody has asked for take places too, but for a few that keep the device busy when requests end
    /// at odd times: else a fast model would write for a slow device all night.
    fn has_room(&self) -> bool {
        self.running.len() < self.size && self.running.len() + self.drafts.len() < self.size + self.size / 4
    }

    fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = self.running.values().filter_map(|running| running.family).collect();
        families.sort_unstable();
        families
    }

    /// Another target, to which what is in flight is of no use: `true` where it is another one.
    fn begin(&mut self, op: &str) -> bool {
        let new = self.op != op;
        if new {
            *self = Self { op: op.to_owned(), ..Self::new(self.size) };
        }
        new
    }

    fn keep(&mut self, draft: Draft) {
        let Draft { task, said, .. } = draft;
        self.kept.insert(task.ticket, (Task { mend: None, ..task }, said));
        while self.kept.len() > KEPT {
            self.kept.pop_first();
        }
    }
}

impl Language {
    /// Looks at what has ended meanwhile.
    pub(super) fn take_in(&mut self) {
        while let Some(done) = self.pool.tasks.try_join_next_with_id() {
            self.pool.note(done);
        }
        while let Some((running, ended)) = self.pool.ended.pop_front() {
            match ended {
                // One that was mended has been waited for longest.
                Ended::Draft(draft) if running.mends => self.pool.drafts.push_front(*draft),
                Ended::Draft(draft) => self.pool.drafts.push_back(*draft),
                Ended::Failed(failure) => self.failed(&running, &failure),
            }
        }
    }

    /// A request that failed for good.
    fn failed(&mut self, running: &Running, failure: &Failure) {
        let host = self.session.settings.host();
        let model = &running.model;
        if running.mends {
            self.pool.given_up.push_back(running.ticket);
        }
        // A model that cannot mend its own mistake says nothing about the endpoint.
        if running.mends && failure.kind.was_answered() {
            self.session.meter.trouble(failure.with(&host, model, "the proposal is not mended"));
            return;
        }
        if !running.mends {
            self.session.meter.came_to_nothing(&self.pool.op, running.ticket);
        }
        let was_away = self.session.breaker().is_away();
        self.last_failure = failure.sentence(&host, model);
        let pause = self.session.breaker().failed(self.session.now(), failure);
        let told = match pause {
            // What can be done about it was said when it went.
            Some(pause) if was_away => {
                format!("{}; it is tried again in {}", failure.fact(&host, model), spoken(pause))
            }
            Some(pause) => {
                let failures = super::breaker::FAILURES_IN_A_ROW;
                let what = format!(
                    "{failures} requests in a row came to nothing: the tuner proposes meanwhile, and {host} is tried again \
                     in {}",
                    spoken(pause)
                );
                failure.with(&host, model, &what)
            }
            // It is no proposal of its own that it declines to make.
            None if failure.kind == Kind::Declined => failure.with(&host, model, "it is asked again"),
            None => failure.with(&host, model, "the proposal is dropped"),
        };
        self.session.meter.trouble(told);
    }

    /// Fills the pool: repairs first, then new proposals.
    pub(super) fn top_up(&mut self, brief: &Brief) {
        if self.pool.begin(&brief.op) {
            self.session.breaker().leave();
        }
        if self.session.breaker().is_away() {
            let lost = self.pool.to_mend.drain(..).map(|task| task.ticket);
            self.pool.given_up.extend(lost);
            if self.pool.has_room() && self.session.breaker().try_now(self.session.now()) {
                self.spawn_new(&Arc::new(brief.clone()));
            }
            return;
        }
        while self.pool.has_room()
            && let Some(task) = self.pool.to_mend.pop_front()
        {
            self.pool.spawn(&self.session, task, None);
        }
        if self.pool.has_room() {
            let brief = Arc::new(brief.clone());
            while self.pool.has_room() {
                self.spawn_new(&brief);
            }
        }
    }

    fn spawn_new(&mut self, brief: &Arc<Brief>) {
        let ticket = self.state.ticket();
        let settings = &self.session.settings;
        let model = settings.model(brief.seed, ticket).to_owned();
        let others = self.pool.families();
        // Alone, a model may follow what it has read of the attempts before.
        let family = (settings.proposals > 1).then(|| direction::draw(brief.seed, ticket, &others));
        let direction = family.map(|family| direction::sentence(family, &others));
        let task = Task { ticket, model, brief: Arc::clone(brief), direction, mend: None };
        self.pool.spawn(&self.session, task, family);
    }

    /// The next thing that is ready for the run.
    pub(super) fn finished(&mut self, brief: &Brief) -> Option<Offer> {
        if let Some(ticket) = self.pool.given_up.pop_front() {
            return Some(Offer::GivenUp { ticket });
        }
        while let Some(draft) = self.pool.drafts.pop_front() {
            let repairs = draft.task.mend.as_ref().map_or(0, |(failed, _)| failed.proposal.repairs + 1);
            let ticket = draft.task.ticket;
            let text = current(&draft, brief);
            if text != brief.incumbent && self.state.propose(&text) {
                // Only now: a model that repeats itself answers too, and is of no more use than one that is away.
                if self.session.breaker().answered() {
                    let (host, model) = (self.session.settings.host(), &draft.task.model);
                    self.session.meter.trouble(format!("{host} answers again: proposals are {model}'s from here on"));
                }
                let offer = Offer::Proposal(Proposal {
                    text,
                    technique: draft.reply.technique.clone(),
                    description: draft.reply.description.clone(),
                    hypothesis: draft.reply.hypothesis.clone(),
                    predicted: draft.reply.predicted,
                    by: Some(draft.task.model.clone()),
                    ticket,
                    repairs,
                });
                self.pool.keep(draft);
                return Some(offer);
            }
            let twice = Failure::new(Kind::NoChange, "the kernel it proposes was proposed before");
            let (mends, model) = (repairs > 0, draft.task.model);
            self.failed(&Running { ticket, model, mends, family: None }, &twice);
            if mends {
                return self.finished(brief);
            }
        }
        None
    }
}

/// The candidate for the incumbent of today. Blocks that were made for an earlier one are tried on today's first, which
/// keeps what was won meanwhile; where they do not fit, the candidate is what it was made to be.
fn current(draft: &Draft, brief: &Brief) -> String {
    let superseded = draft.task.mend.is_none() && draft.task.brief.incumbent != brief.incumbent;
    let again = superseded.then(|| draft.reply.change.apply(&brief.incumbent).ok()).flatten();
    again.unwrap_or_else(|| draft.text.clone())
}

/// A pause for a reader.
fn spoken(pause: std::time::Duration) -> String {
    match pause.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}
