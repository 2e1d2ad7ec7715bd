//! Which queue pair comes next: a guess, where a program uses many of them in turn.

/// Guesses which queue pair comes next. Programs with many often use them in turn, and then each is out of
/// cache when its turn comes; a guess is made where the last two steps were alike.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    last: u32,
    step: u32,
}

impl Turns {
    /// This one came; the step to the next one, if it seems to be known.
    #[inline]
    pub fn step_after(&mut self, index: u32) -> Option<u32> {
        let step = index.wrapping_sub(self.last);
        let known = step == self.step && step != 0;
        (self.last, self.step) = (index, step);
        known.then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_needs_two_steps_alike() {
        let mut turns = Turns::default();
        let guesses: Vec<_> =
            [5, 7, 9, 11, 11, 11, 12, 13, 3, 9].into_iter().map(|index| turns.step_after(index)).collect();
        let known = [None, None, Some(2), Some(2), None, None, None, Some(1), None, None];
        assert_eq!(guesses, known);
    }
}
