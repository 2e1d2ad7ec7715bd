//! The server's programs: a hull that owns the table and readers' chains, and a worker for each client.

use super::super::gets::{connect, take};
use super::super::{How, text};
use super::table::{Table, VALUES, heard};
use super::{CHAIN, DONE, GET, HEAD, MISS, SET, Service, TABLE, Turns, door};
use adverb_rdma::{
    Access, Caps, Cq, Data, Duration, Error, Key, Line, Listener, On, Pd, Qp, QpType, Rdma, RecvRequest,
    Region, Remote, SendOp,
};
use adverb_redn::Loaded;
use adverb_redn::chain::Address;
use adverb_redn::service::chain::Lookup;
use std::cell::Cell;
use std::rc::Rc;

/// The program that owns the table. Started again, it takes its time to fill it anew, while workers answer.
pub async fn hull(rdma: Rdma, service: Service, lives: Rc<Cell<u32>>) -> Result<(), Error> {
    let life = lives.replace(lives.get() + 1);
    let pd = rdma.create_pd().await?;
    let file = rdma.create_file(VALUES + service.values_len()).await?;
    let number = file.number();
    let table = Table::map(&pd, file, service, None).await?;
    let (tables, chains) = (rdma.listen(TABLE).await?, rdma.listen(CHAIN).await?);
    let pause =
        Duration::from_ps(if life == 0 { 0 } else { service.rebuild.as_ps() / table.service.all_keys() });
    let mut kept = (Vec::new(), Vec::new());
    let told = [&number.to_be_bytes()[..], &table.told()].concat();
    for n in 0..table.service.all_keys() {
        if life > 0 {
            rdma.think(pause).await?;
            answer(&tables, &told, &mut kept.0).await?;
        }
        table.insert(n).await?;
    }
    loop {
        answer(&tables, &told, &mut kept.0).await?;
        if let Some(asked) = chains.try_accept().await? {
            kept.1.push(admit(&rdma, &pd, &table, asked).await?);
        }
        let on = [On::Stop, On::Asked(&tables), On::Asked(&chains)];
        if rdma.until(&on, None).await? == Some(0) {
            return Ok(());
        }
    }
}

/// Tells workers of the table.
async fn answer(tables: &Listener, told: &[u8], kept: &mut Vec<Line>) -> Result<(), Error> {
    while let Some(asked) = tables.try_accept().await? {
        kept.push(asked.reply(told).await?);
    }
    Ok(())
}

/// Gives a reader a chain of its own, or lets it read by itself.
async fn admit(
    rdma: &Rdma,
    pd: &Pd,
    table: &Table,
    asked: adverb_rdma::Asked,
) -> Result<(Option<Loaded>, Option<Qp>, Line), Error> {
    let buffer = Remote::from_bytes(asked.own()?).ok_or(Error::Garbled("a buffer"))?;
    if table.service.how == How::OneSided {
        let cq = rdma.create_cq(16).await?;
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let line = asked.accept(&qp, &table.told(), &connect()).await?;
        return Ok((None, Some(qp), line));
    }
    let lookup = Lookup::new(table.service.shape());
    let mut loaded = Loaded::create(rdma, pd, lookup.chain).await.map_err(text)?;
    let of = |region: &Region| (region.addr(), region.lkey(), region.remote().rkey);
    let (addr, _, rkey) = of(&table.index);
    loaded.give(lookup.index, Address { addr, lkey: Key(0), rkey });
    let (addr, lkey, _) = of(&table.values);
    loaded.give(lookup.values, Address { addr, lkey, rkey: Key(0) });
    loaded.give(lookup.buffer, Address { addr: buffer.addr, lkey: Key(0), rkey: buffer.rkey });
    loaded.connect(&connect()).await.map_err(text)?;
    let qp = loaded.qp(lookup.client).clone();
    let how = adverb_rdma::Connect { access: Access::empty(), ..connect() };
    let line = asked.accept(&qp, &table.told(), &how).await?;
    loaded.start().await.map_err(text)?;
    Ok((Some(loaded), None, line))
}

/// A thread of the process: answers one client, and the next one when that has gone.
pub async fn worker(rdma: Rdma, service: Service, n: u32) -> Result<(), Error> {
    let (_line, told) = rdma.ask(TABLE, &[], None).await?;
    let (number, rest) = told.split_first_chunk().ok_or(Error::Garbled("a file"))?;
    let (layout, ..) = heard(rest)?;
    let pd = rdma.create_pd().await?;
    let table = Table::map(&pd, rdma.file(i32::from_be_bytes(*number)), service, Some(layout)).await?;
    let listener = rdma.listen(&door(n)).await?;
    let (sends, receives) = (rdma.create_cq(64).await?, rdma.create_cq(64).await?);
    let inbox = pd.region(u64::from(HEAD + service.value), Access::LOCAL_WRITE).await?;
    let outbox = pd.region(u64::from(service.value) + 8, Access::LOCAL_WRITE).await?;
    loop {
        let asked = listener.accept().await?;
        let reply = Remote::from_bytes(asked.own()?).ok_or(Error::Garbled("a region"))?;
        let caps = Caps { max_recv_wr: 4, max_send_wr: 64, max_inline: 16, ..Caps::default() };
        let qp = pd.create_qp(QpType::Rc, (&sends, &receives), None, caps).await?;
        let whole = inbox.piece(0, HEAD + service.value)?;
        let line = asked.accept(&qp, &[], &connect()).await?;
        qp.post_recv(vec![RecvRequest::into_piece(0, whole)]).await?;
        let desk = Desk {
            service,
            inbox: &inbox,
            outbox: &outbox,
            qp: &qp,
            sends: &sends,
            reply,
            turns: Turns::default(),
        };
        loop {
            match rdma.until(&[On::Stop, On::Gone(&line), On::Cq(&receives)], None).await? {
                Some(0) => return Ok(()),
                Some(1) => break,
                _ => {}
            }
            take(&receives).await?;
            rdma.think(service.think).await?;
            desk.serve(&table).await?;
        }
    }
}

/// What a worker has for its client.
struct Desk<'a> {
    service: Service,
    inbox: &'a Region,
    outbox: &'a Region,
    qp: &'a Qp,
    sends: &'a Cq,
    reply: Remote,
    turns: Turns,
}

impl Desk<'_> {
    /// Answers the message that has come.
    async fn serve(&self, table: &Table) -> Result<(), Error> {
        let (what, n) = (self.inbox.load(0).await?, self.inbox.load(8).await?);
        let len = self.service.value;
        let mark = match what {
            SET => {
                let value = self.inbox.read(HEAD.into(), len as usize).await?;
                table.set(n, &value).await?;
                DONE
            }
            _ => MISS,
        };
        let found = if what == GET { table.get(n).await? } else { None };
        self.qp.post_recv(vec![RecvRequest::into_piece(0, self.inbox.piece(0, HEAD + len)?)]).await?;
        let last = u64::from(len) - 8;
        let (data, at) = match found {
            Some(at) if self.service.stack => {
                let value = table.values.read(at, len as usize).await?;
                self.outbox.write(0, &value).await?;
                (Data::Piece(self.outbox.piece(0, len)?), 0)
            }
            Some(at) => (Data::Piece(table.values.piece(at, len)?), 0),
            None => (Data::Inline(mark.to_ne_bytes().to_vec()), last),
        };
        let op = SendOp::Write(self.reply.addr + at, self.reply.rkey);
        self.turns.post(self.qp, self.sends, (op, data)).await
    }
}
