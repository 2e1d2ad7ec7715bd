//! How programs here meet: one listens and admits, the other joins; each end has a queue pair of its own with
//! its completion queue. And how what is told thereby is read.

use adverb_rdma::{Asked, Caps, Connect, Error, Instant, Line, Pd, Qp, Rdma};

/// One end of a connection. Nothing arrives any more when it is gone.
pub(crate) struct Met {
    pub qp: Qp,
    pub line: Line,
}

/// Connects whoever asked, who posts; and tells it this.
pub(crate) async fn admit(
    rdma: &Rdma,
    pd: &Pd,
    asked: Asked,
    welcome: &[u8],
    connect: &Connect,
) -> Result<Met, Error> {
    let cq = rdma.create_cq(16).await?;
    let qp = pd.create_rc(&cq, Caps { max_send_wr: 1, ..Caps::default() }).await?;
    let line = asked.accept(&qp, welcome, connect).await?;
    Ok(Met { qp, line })
}

/// Connects to whoever listens under a name, and gives what it tells. Until the deadline it tries again while
/// nobody listens there.
pub(crate) async fn join(
    rdma: &Rdma,
    pd: &Pd,
    name: &str,
    question: &[u8],
    connect: &Connect,
    deadline: Option<Instant>,
) -> Result<(Met, Vec<u8>), Error> {
    let cq = rdma.create_cq(64).await?;
    let qp = pd.create_rc(&cq, Caps { max_send_wr: 16, ..Caps::default() }).await?;
    let (line, told) = qp.connect(name, question, connect, deadline).await?;
    Ok((Met { qp, line }, told))
}

/// What was told: fields one after the other, numbers big-endian.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next bytes.
    pub fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(field)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take().copied().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take().copied().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().copied().map(u64::from_be_bytes)
    }
}
