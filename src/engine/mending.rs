//! Failed proposals that go back to their author. Until something comes of one it is no experiment, and the run's state
//! carries it, so that whatever ends the run does not lose it.

use crate::agent::{Agent, MOST_REPAIRS, Outside};

use super::experiment::RIVAL;
use super::trial::{Judged, Trial};
use super::{Run, RunError};

impl Run {
    /// Gives a failed proposal back to its author, where they will mend it; else it is an experiment.
    pub(super) fn park_or_record(
        &mut self,
        index: usize,
        agent: &mut dyn Agent,
        judged: Judged,
    ) -> Result<(), RunError> {
        // What it mends has become a part of its own story.
        self.state.targets[index].parked.remove(&judged.ticket());
        if mends(agent, &judged) { self.park(index, agent, judged) } else { self.record(index, agent, judged) }
    }

    /// What was being mended when the run was interrupted goes back to its author again, or has failed as it was judged.
    pub(super) fn go_on_mending(&mut self, index: usize, agent: &mut dyn Agent) -> Result<(), RunError> {
        for judged in self.state.targets[index].parked.clone().into_values() {
            if !mends(agent, &judged) {
                self.state.targets[index].parked.remove(&judged.ticket());
                self.record(index, agent, judged)?;
            }
        }
        Ok(())
    }

    /// What nobody will mend any more has failed as it was judged.
    pub(super) fn give_up_mending(&mut self, index: usize, agent: &mut dyn Agent) -> Result<(), RunError> {
        while let Some((_, judged)) = self.state.targets[index].parked.pop_first() {
            self.record(index, agent, judged)?;
        }
        Ok(())
    }

    /// The same for all targets of a run that ends before it comes back to them.
    pub(super) fn give_up_all_mending(&mut self) -> Result<(), RunError> {
        let mut agent = Outside { name: self.state.agent.name().to_owned() };
        (0..self.state.targets.len()).try_for_each(|index| self.give_up_mending(index, &mut agent))
    }

    /// Whether this very proposal had its verdict and was parked before the run was killed.
    pub(super) fn was_parked(&self, index: usize, trial: &Trial) -> bool {
        let parked = self.state.targets[index].parked.get(&trial.proposal.ticket);
        !trial.is_start && parked.is_some_and(|judged| judged.trial.proposal.repairs >= trial.proposal.repairs)
    }

    /// Writes down that it is being mended; only then is it pending no more.
    fn park(&mut self, index: usize, agent: &dyn Agent, judged: Judged) -> Result<(), RunError> {
        self.tick();
        let target = &mut self.state.targets[index];
        let (file, id) = (judged.trial.file.clone(), judged.trial.id);
        target.memory = agent.save();
        target.parked.insert(judged.ticket(), judged);
        self.state.decided = self.state.decided.max(id);
        self.checkpoint()?;
        Ok(self.record.withdraw(id, &file)?)
    }
}

/// Whether its author takes it back. A starting point has none, nor has a kernel that is there in another language.
fn mends(agent: &mut dyn Agent, judged: &Judged) -> bool {
    let failed = judged.failed();
    !judged.trial.is_start
        && judged.trial.proposal.technique != RIVAL
        && failed.verdict.is_failure()
        && failed.proposal.repairs < MOST_REPAIRS
        && agent.mend(&failed)
}
