//! Deadlocks of PFC: a cycle of ports each of which is paused because of packets that wait for the next.

use crate::fabric::Fabric;
use crate::fabric::link::HOST;

impl Fabric {
    /// A cycle of paused waits, as the links whose ports wait in turn, starting at the lowest number;
    /// none while every paused port waits for one that can move.
    ///
    /// Port `a` waits for port `b` when `a`'s link is paused in a class, and the switch at its end holds
    /// packets of that class, come on that link, that wait for `b`, paused in that class too.
    pub fn deadlock(&self) -> Option<Vec<u32>> {
        (0..self.classes).find_map(|class| self.deadlock_in(class))
    }

    fn deadlock_in(&self, class: usize) -> Option<Vec<u32>> {
        let links = &self.links;
        let stuck = |l: usize| links[l].paused >> class & 1 != 0 && links[l].queued >> class & 1 != 0;
        let mut waits_for: Vec<Vec<u32>> = vec![Vec::new(); links.len()];
        for out in (0..links.len()).filter(|l| stuck(*l) && links[*l].from & HOST == 0) {
            let switch = &self.switches[links[out].from as usize];
            switch.for_each(&self.packets, usize::from(links[out].port_from), class, |hot| {
                let entered = switch.link(hot.via as usize) as usize ^ 1;
                if waits_for[entered].last() != Some(&(out as u32)) {
                    waits_for[entered].push(out as u32);
                }
            });
        }
        // Depth-first: 0 not seen, 1 on the path, 2 done.
        let mut seen = vec![0u8; links.len()];
        for start in (0..links.len()).filter(|l| stuck(*l) && links[*l].to & HOST == 0) {
            let mut path: Vec<(u32, usize)> = Vec::new();
            if seen[start] == 0 {
                path.push((start as u32, 0));
                seen[start] = 1;
            }
            while let Some(&mut (at, ref mut next)) = path.last_mut() {
                let Some(&to) = waits_for[at as usize].get(*next) else {
                    seen[at as usize] = 2;
                    path.pop();
                    continue;
                };
                *next += 1;
                match seen[to as usize] {
                    0 if stuck(to as usize) => {
                        seen[to as usize] = 1;
                        path.push((to, 0));
                    }
                    1 => {
                        let from = path.iter().position(|p| p.0 == to).unwrap_or(0);
                        let mut cycle: Vec<u32> = path[from..].iter().map(|p| p.0).collect();
                        let lowest = (0..cycle.len()).min_by_key(|i| cycle[*i]).unwrap_or(0);
                        cycle.rotate_left(lowest);
                        return Some(cycle);
                    }
                    _ => {}
                }
            }
        }
        None
    }
}
