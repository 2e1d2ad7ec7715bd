//! Flows as transfers: from a flow's start, through its host's executor and command slots, to its report.

use super::host::{Grant, PID, Posted, region_key};
use super::{Operation, RegionChange};
use crate::Verb;
use crate::host::{address, host_of};
use crate::sim::Sim;
use crate::source::Source;
use crate::workload::flows;
use adverb_nic::Error;
use adverb_nic::one_rma::executor::{End, Report, Retry, TransferInit};
use adverb_nic::one_rma::{Command, Outcome, RegionKey};
use adverb_wire::Instant;
use adverb_wire::one_rma::{KEY_LEN, Op as Kind};

/// Tag of transfers that are no flows.
const NO_FLOW: u64 = u64::MAX;
/// Set in tags of programs' transfers.
pub(crate) const PROGRAMS: u64 = 1 << 63;

impl Sim {
    /// Hands a flow to its host's executor.
    pub(crate) fn start_transfer(&mut self, number: u32) -> Result<(), Error> {
        let mut spec = self.flows.list[number as usize].spec;
        self.flows.workload.redirect(&mut spec);
        self.flows.list[number as usize].spec = spec;
        let (near, far) = spec.ends();
        let op = kind(spec.op).ok_or(Error::Invalid("1RMA has reads and writes only"))?;
        let grant = self.key_for(near, far, op)?;
        let rma = &mut self.hosts.one_rma;
        let place = u64::from(number) * rma.config.apart;
        let (retry, host) = (rma.config.retry, &mut rma.hosts[near as usize]);
        let init = TransferInit {
            op,
            class: 0,
            len: u64::from(spec.bytes),
            target: address(far),
            remote_region: grant.region,
            remote_offset: place,
            local_region: host.local,
            local_offset: place,
            key: grant.key,
            deadline: None,
            retry,
            tag: u64::from(number),
        };
        host.executor.submit(Instant::from_ps(self.now), init)?;
        self.flows.began();
        self.after_rma(near);
        Ok(())
    }

    /// The key that a host uses for a peer's region; it asks the owner for the first one, out of band and in
    /// no time.
    fn key_for(&mut self, near: u32, far: u32, op: Kind) -> Result<Grant, Error> {
        let rma = &mut self.hosts.one_rma;
        if let Some((_, known)) = rma.hosts[near as usize].key(far, op) {
            return Ok(known.clone());
        }
        let grant = rma.hosts[far as usize].grant(near, op);
        rma.hosts[near as usize].learn(self.now, far, op, grant.clone());
        Ok(grant)
    }

    /// What the software of a host has to do now: completions, reports, commands. False when there was
    /// nothing.
    pub(super) fn run_software(&mut self, h: u32) -> bool {
        let now = Instant::from_ps(self.now);
        let rma = &mut self.hosts.one_rma;
        let host = &mut rma.hosts[h as usize];
        let mut busy = false;
        while let Some(completion) = host.portal.next_completion() {
            busy = true;
            let posted = host.posted.get(completion.slot.index() as usize).copied().unwrap_or_default();
            rma.record.add(Operation {
                at: self.now,
                issue_ps: completion.issue_delay.as_ps(),
                total_ps: completion.total_delay.as_ps(),
                initiator: h,
                target: posted.target,
                len: posted.len,
                outcome: completion.outcome,
            });
            host.executor.on_completion(now, &completion);
        }
        while let Some(posting) = host.next_command(self.now) {
            busy = true;
            if let Ok(command) = Command::parse(&posting.command) {
                let at = posting.slot.index() as usize;
                host.posted[at] = Posted { target: host_of(&command.target), len: command.len };
            }
            if let Err(error) = host.nic.post(now, posting.slot, &posting.command) {
                host.executor.on_refused(now, posting.slot, error);
            }
        }
        while let Some(report) = self.hosts.one_rma.hosts[h as usize].executor.next_report() {
            busy = true;
            self.on_report(h, &report);
        }
        busy
    }

    fn on_report(&mut self, h: u32, report: &Report) {
        if self.watch.journal.is_on() {
            let what = format_args!("transfer {}: {}, {} bytes", report.tag as i64, report.end, report.bytes);
            self.watch.journal.add(self.now, format_args!("host {h}"), what);
        }
        if report.tag == NO_FLOW {
            return;
        }
        if report.tag & PROGRAMS != 0 {
            self.programs.reports.push((report.tag & !PROGRAMS, *report));
            return self.host_changed(h);
        }
        let number = report.tag as u32;
        let submitted = self.now - report.elapsed.as_ps();
        let refused = report.end == End::Outcome(Outcome::RemoteAuthenticationFailure);
        if refused && self.learn_again(number, submitted) {
            // The application tries again with the key that it was handed for the time after the rotation.
            self.flows.undone();
            let again = self.start_transfer(number);
            if again.is_ok() {
                return;
            }
            self.flows.began();
        }
        let rma = &mut self.hosts.one_rma;
        if let Some(oracle) = &mut rma.oracle {
            let spec = self.flows.list[number as usize].spec;
            oracle.on_report(&rma.hosts, number, &spec, report.end.is_ok());
        }
        self.end_transfer(number, report.end.is_ok());
    }

    /// Whether there is a newer key than a flow that began at `submitted` was begun with: one that its host
    /// has learnt since, or learns now because the peer's owner has announced it.
    fn learn_again(&mut self, number: u32, submitted: u64) -> bool {
        let (near, far) = self.flows.list[number as usize].spec.ends();
        let op = kind(self.flows.list[number as usize].spec.op);
        let Some(op) = op else { return false };
        let rma = &mut self.hosts.one_rma;
        let grant = rma.hosts[far as usize].grant(near, op);
        if let Some((since, known)) = rma.hosts[near as usize].key(far, op)
            && known.region == grant.region
            && known.key.equals(&grant.key)
        {
            return *since > submitted;
        }
        rma.hosts[near as usize].learn(self.now, far, op, grant);
        true
    }

    /// What happens to a host's region now.
    pub(crate) fn on_region_event(&mut self) {
        while let Some(event) = self.hosts.one_rma.config.events.first().copied() {
            let rma = &mut self.hosts.one_rma;
            if event.at > self.now {
                return self.set_timer(Source::Regions, event.at);
            }
            rma.config.events.remove(0);
            if let RegionChange::Driver(gone) = event.what {
                let what = RegionChange::DriverDone;
                let back = super::RegionEvent { at: event.at + gone, what, ..event };
                let at = rma.config.events.partition_point(|other| other.at <= back.at);
                rma.config.events.insert(at, back);
            }
            // A region that is gone stays gone: what cannot be done to it is not done.
            let _ = self.change_region(event.host, event.what);
            self.after_rma(event.host);
        }
    }

    fn change_region(&mut self, h: u32, what: RegionChange) -> Result<(), Error> {
        let now = Instant::from_ps(self.now);
        let host = &mut self.hosts.one_rma.hosts[h as usize];
        match what {
            RegionChange::Withdraw | RegionChange::Driver(_) => host.nic.deregister(host.region),
            RegionChange::DriverDone => {
                host.epoch += 1;
                let key = RegionKey::new(region_key(host.seed, host.epoch));
                host.region =
                    host.nic.register(&adverb_nic::one_rma::RegionInit { key, ..host.init.clone() })?;
                Ok(())
            }
            RegionChange::Rekey => {
                let key = host.nic.derive(host.region, address(h), PID, Kind::Rekey)?;
                host.safe.write(0, &region_key(host.seed, host.epoch + 1));
                let init = TransferInit {
                    op: Kind::Rekey,
                    class: 0,
                    len: KEY_LEN as u64,
                    target: address(h),
                    remote_region: host.region,
                    remote_offset: 0,
                    local_region: host.secret,
                    local_offset: 0,
                    key,
                    deadline: None,
                    // A Rekey that only had to wait for the own window is tried again.
                    retry: Retry::times(u8::MAX),
                    tag: NO_FLOW,
                };
                host.executor.submit(now, init)?;
                host.epoch += 1;
                Ok(())
            }
        }
    }
}

fn kind(op: flows::Verb) -> Option<Kind> {
    match op {
        Verb::Read => Some(Kind::Read),
        Verb::Write => Some(Kind::Write),
        Verb::Send => None,
    }
}
