//! `by-sideway PORT` and `by-sideway PORT ADDRESS`: messages back and forth over RC by the crate `sideway`,
//! over a connection of its rdma_cm, with its extended queue pairs and completion queues; each message is
//! compared by whoever gets it.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{ExtendedCompletionQueue, GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, PostSendGuard, QueuePair, QueuePairState, SetScatterGatherEntry, WorkRequestFlags,
};
use sideway::rdmacm::communication_manager::{
    ConnectionParameter, Event, EventChannel, EventType, Identifier, PortSpace,
};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

type Done<T> = Result<T, Box<dyn Error>>;

const ROUNDS: u64 = 1000;
const WORDS: usize = 512;
const BYTES: u32 = 8 * WORDS as u32;
const SENT: u64 = 1;
const RECEIVED: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(2);

/// The next event, which has to be this one.
fn wait_for(channel: &Arc<EventChannel>, wanted: EventType) -> Done<Event> {
    let event = channel.get_cm_event()?;
    if event.event_type() != wanted {
        return Err(format!("{:?} (status {}), not {wanted:?}", event.event_type(), event.status()).into());
    }
    Ok(event)
}

/// A queue pair, its completion queue, and memory to send from and to receive into.
struct Lane {
    qp: ExtendedQueuePair,
    cq: Arc<ExtendedCompletionQueue>,
    out: (Box<[u64; WORDS]>, Arc<MemoryRegion>),
    into: (Box<[u64; WORDS]>, Arc<MemoryRegion>),
    /// Completions that came before they were waited for.
    early: Vec<u64>,
}

impl Lane {
    fn new(id: &Identifier) -> Done<Lane> {
        let context = id.get_device_context().ok_or("the connection has no device")?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq_builder().setup_cqe(4).build_ex()?;
        let handle = GenericCompletionQueue::from(Arc::clone(&cq));
        let mut builder = pd.create_qp_builder();
        builder.setup_max_send_wr(2).setup_max_recv_wr(2).setup_max_send_sge(1).setup_max_recv_sge(1);
        let qp = builder.setup_send_cq(handle.clone()).setup_recv_cq(handle).build_ex()?;
        let memory = || {
            let words = Box::new([0; WORDS]);
            // SAFETY: the box does not move, and nothing is under way when it goes: `run` waits for every
            // completion, and after an error the process ends.
            let region =
                unsafe { pd.reg_mr(words.as_ptr() as usize, BYTES as usize, AccessFlags::LocalWrite) };
            region.map(|region| (words, region))
        };
        Ok(Lane { qp, cq, out: memory()?, into: memory()?, early: Vec::new() })
    }

    /// Ready to receive and to send, with a receive posted.
    fn ready(&mut self, id: &Identifier) -> Done<()> {
        for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
            self.qp.modify(&id.get_qp_attr(state)?)?;
        }
        self.post_receive()
    }

    fn post_receive(&mut self) -> Done<()> {
        let mut guard = self.qp.start_post_recv();
        let (words, region) = &mut self.into;
        // SAFETY: the memory stays until the completion, as `new` says.
        unsafe { guard.construct_wr(RECEIVED).setup_sge(region.lkey(), words.as_mut_ptr() as u64, BYTES) };
        Ok(guard.post()?)
    }

    fn post_send(&mut self) -> Done<()> {
        let mut guard = self.qp.start_post_send();
        let (words, region) = &self.out;
        let request = guard.construct_wr(SENT, WorkRequestFlags::Signaled).setup_send();
        // SAFETY: as for receives.
        unsafe { request.setup_sge(region.lkey(), words.as_ptr() as u64, BYTES) };
        Ok(guard.post()?)
    }

    fn completed(&mut self, wanted: u64) -> Done<()> {
        loop {
            if let Some(at) = self.early.iter().position(|id| *id == wanted) {
                self.early.remove(at);
                return Ok(());
            }
            // An error is an empty queue.
            let Ok(mut poller) = self.cq.start_poll() else { continue };
            while let Some(completion) = poller.next() {
                if completion.status() != WorkCompletionStatus::Success as u32 {
                    let status = WorkCompletionStatus::from(completion.status());
                    return Err(format!("request {} failed: {status:?}", completion.wr_id()).into());
                }
                self.early.push(completion.wr_id());
            }
        }
    }

    fn run(&mut self, is_client: bool) -> Done<()> {
        for round in 0..ROUNDS {
            let words = |at: usize| round * WORDS as u64 + at as u64;
            for turn in [is_client, !is_client] {
                if turn {
                    *self.out.0 = std::array::from_fn(words);
                    self.post_send()?;
                    self.completed(SENT)?;
                } else {
                    self.completed(RECEIVED)?;
                    if *self.into.0 != std::array::from_fn(words) {
                        return Err(format!("round {round}: other bytes than were sent").into());
                    }
                    self.into.0.fill(0);
                    if round + 1 < ROUNDS {
                        self.post_receive()?;
                    }
                }
            }
        }
        println!("sideway: {ROUNDS} rounds of {BYTES} bytes, all right");
        Ok(())
    }
}

fn serve(channel: &Arc<EventChannel>, port: u16) -> Done<()> {
    let listener = channel.create_id(PortSpace::Tcp)?;
    listener.bind_addr((Ipv4Addr::UNSPECIFIED, port).into())?;
    listener.listen(4)?;
    let request = wait_for(channel, EventType::ConnectRequest)?;
    let id = request.cm_id().ok_or("a request without its connection")?;
    request.ack()?;
    let mut lane = Lane::new(&id)?;
    lane.ready(&id)?;
    let mut offer = ConnectionParameter::default();
    offer.setup_qp_number(lane.qp.qp_number());
    id.accept(offer)?;
    wait_for(channel, EventType::Established)?.ack()?;
    lane.run(false)?;
    // Who has sent last ends the connection: its peer stays until then, and acknowledges again if it must.
    id.disconnect()?;
    wait_for(channel, EventType::Disconnected)?.ack()?;
    Ok(())
}

fn ask(channel: &Arc<EventChannel>, peer: SocketAddr) -> Done<()> {
    let id = channel.create_id(PortSpace::Tcp)?;
    id.resolve_addr(None, peer, PATIENCE)?;
    wait_for(channel, EventType::AddressResolved)?.ack()?;
    id.resolve_route(PATIENCE)?;
    wait_for(channel, EventType::RouteResolved)?.ack()?;
    let mut lane = Lane::new(&id)?;
    let mut offer = ConnectionParameter::default();
    offer.setup_qp_number(lane.qp.qp_number());
    id.connect(offer)?;
    wait_for(channel, EventType::ConnectResponse)?.ack()?;
    lane.ready(&id)?;
    id.establish()?;
    lane.run(true)?;
    wait_for(channel, EventType::Disconnected)?.ack()?;
    Ok(id.disconnect()?)
}

fn main() -> Done<()> {
    let mut args = std::env::args().skip(1);
    let port: u16 = args.next().ok_or("a port is missing")?.parse()?;
    let channel = EventChannel::new()?;
    match args.next() {
        Some(address) => ask(&channel, (address.parse::<IpAddr>()?, port).into()),
        None => serve(&channel, port),
    }
}
