-- Reads the headers and bodies of StaR's packets, which Wireshark's InfiniBand dissector leaves alone behind the BTH:
-- their opcodes are among those that IBTA leaves to manufacturers (0xe0 and up). The layout stands in
-- crates/wire/src/star/mod.rs.
--
--     tshark -X lua_script:scripts/adverb_star.lua -r run.pcap -Y adverb_star
--     wireshark -X lua_script:scripts/adverb_star.lua run.pcap

local star = Proto("adverb_star", "StaR")

local OPS = { [0] = "SEND", "RECV", "WRITE", "READ", "Compare and Swap", "Fetch and Add", [15] = "Control" }
local WISHES = { "server", "client", "auto" }
local SYNDROMES = {
  [0x1f] = "Done", [0x61] = "Invalid", [0x62] = "Access", [0x68] = "Not posted", [0x69] = "Expired", [0x6a] = "Busy",
}
local REFUSALS = { [0] = "None", "Too large", "Unknown connection" }

local f = star.fields
f.packet = ProtoField.string("adverb_star.packet", "Packet")
f.op = ProtoField.uint8("adverb_star.op", "Operation", base.DEC, OPS, 0xf0)
f.migration = ProtoField.bool("adverb_star.migration", "Carries the connection's record", 8, nil, 0x01)
f.merged = ProtoField.bool("adverb_star.merged", "Completes what it is for", 8, nil, 0x01)
f.burst = ProtoField.bool("adverb_star.burst", "Asks for several packets' data", 8, nil, 0x01)
f.final = ProtoField.bool("adverb_star.final", "What has not come before it does not come", 8, nil, 0x01)
f.recv_queue = ProtoField.bool("adverb_star.recv_queue", "Entries are of the receive queue", 8, nil, 0x02)
f.posted = ProtoField.bool("adverb_star.posted", "Names a place in a posted request", 8, nil, 0x04)
f.pool = ProtoField.bool("adverb_star.pool", "Of a service without connections", 8, nil, 0x08)
f.copy = ProtoField.uint8("adverb_star.copy", "New deadlines given")
f.clock = ProtoField.uint32("adverb_star.clock", "Clock of the stateless side in us")
f.asked = ProtoField.uint16("adverb_star.asked", "Bytes asked for (of several packets, less one)")
f.entries = ProtoField.uint16("adverb_star.entries", "Entries")
f.following = ProtoField.uint32("adverb_star.following", "Bytes of the message after this packet")
f.order = ProtoField.uint32("adverb_star.order", "Place among all that the NIC has executed")
f.refusal = ProtoField.uint32("adverb_star.refusal", "Refusal", base.DEC, REFUSALS)
f.completions = ProtoField.uint32("adverb_star.completions", "Completions that there are in all")
f.receives = ProtoField.uint32("adverb_star.receives", "Receives posted in all")
f.closing = ProtoField.uint32("adverb_star.closing", "Why the sender has failed")
f.va = ProtoField.uint64("adverb_star.va", "Address", base.HEX)
f.index = ProtoField.uint24("adverb_star.index", "Posted request")
f.offset = ProtoField.uint32("adverb_star.offset", "Bytes of the message before these")
f.merged_number = ProtoField.uint24("adverb_star.merged.number", "Number of the completion")
f.merged_immediate = ProtoField.uint32("adverb_star.merged.immediate", "Immediate", base.HEX)
f.merged_flags = ProtoField.uint32("adverb_star.merged.flags", "Flags of the completion", base.HEX)
f.rkey = ProtoField.uint32("adverb_star.rkey", "Remote key", base.HEX)
f.deadline = ProtoField.uint32("adverb_star.deadline", "Deadline in us")
f.syndrome = ProtoField.uint8("adverb_star.syndrome", "Syndrome", base.HEX, SYNDROMES)
f.answered_copy = ProtoField.uint8("adverb_star.answered_copy", "Answers the copy")
f.congested = ProtoField.bool("adverb_star.congested", "The request met congestion", 8, nil, 0x01)
f.of_sends = ProtoField.bool("adverb_star.of_sends", "Answers a packet for the send queue", 8, nil, 0x02)
f.run = ProtoField.uint8("adverb_star.run", "Packets answered")
f.epoch = ProtoField.uint8("adverb_star.ticket.epoch", "Epoch of the key")
f.incarnation = ProtoField.uint8("adverb_star.ticket.incarnation", "Incarnation")
f.pd = ProtoField.uint16("adverb_star.ticket.pd", "Protection domain")
f.mtu = ProtoField.uint8("adverb_star.ticket.mtu", "Path MTU code", base.DEC, nil, 0x38)
f.may_write = ProtoField.bool("adverb_star.ticket.write", "May write", 8, nil, 0x01)
f.may_read = ProtoField.bool("adverb_star.ticket.read", "May read", 8, nil, 0x02)
f.may_atomic = ProtoField.bool("adverb_star.ticket.atomic", "May execute atomics", 8, nil, 0x04)
f.carried = ProtoField.bool("adverb_star.ticket.carried", "May name what is posted by address", 8, nil, 0x40)
f.peer = ProtoField.uint24("adverb_star.ticket.peer", "Queue pair of the stateful side", base.HEX)
f.seal = ProtoField.uint64("adverb_star.ticket.seal", "Seal", base.HEX)
local SWITCH_STEPS = { [1] = "Ask", [2] = "Compare", [3] = "Quiesce", [4] = "Quiesced", [5] = "Commit", [6] = "Done",
  [7] = "Resume", [8] = "Refused" }
local SIDES = { [1] = "stateless", [2] = "stateful", [3] = "plain RC" }
f.switch_step = ProtoField.uint8("adverb_star.switch.step", "Switch", base.DEC, SWITCH_STEPS)
f.switch_to = ProtoField.uint8("adverb_star.switch.to", "The receiver becomes", base.DEC, SIDES)
f.switch_epoch = ProtoField.uint32("adverb_star.switch.epoch", "Epoch")
f.switch_first = ProtoField.uint24("adverb_star.switch.first", "First PSN of the sender")
f.switch_peer_first = ProtoField.uint24("adverb_star.switch.peer_first", "First PSN of the receiver")
f.switch_next = ProtoField.uint24("adverb_star.switch.next", "Next PSN of the sender")
f.switch_peer_next = ProtoField.uint24("adverb_star.switch.peer_next", "Next PSN of the receiver")
f.switch_told = ProtoField.uint32("adverb_star.switch.told", "Requests told, or newest epoch")
f.switch_connections = ProtoField.uint32("adverb_star.switch.connections", "Connections")
f.switch_threshold = ProtoField.uint32("adverb_star.switch.threshold", "Threshold")
f.wish = ProtoField.uint8("adverb_star.hello.wish", "Wants to be", base.DEC, WISHES)
f.features = ProtoField.uint8("adverb_star.hello.features", "Features", base.HEX)
f.window = ProtoField.uint16("adverb_star.hello.window", "Packets that the sender can take in")
f.connections = ProtoField.uint32("adverb_star.hello.connections", "Connections in the sender's NIC")
f.threshold = ProtoField.uint32("adverb_star.hello.threshold", "Threshold")
f.capacity = ProtoField.uint16("adverb_star.hello.capacity", "More that it could take")
f.hello_sends = ProtoField.uint16("adverb_star.hello.send_queue", "Send queue")
f.hello_recvs = ProtoField.uint16("adverb_star.hello.recv_queue", "Receive queue")
f.hello_clock = ProtoField.uint32("adverb_star.hello.clock", "Clock in us")
f.wqe_op = ProtoField.uint8("adverb_star.wqe.op", "Operation", base.DEC, OPS)
f.wqe_flags = ProtoField.uint8("adverb_star.wqe.flags", "Flags", base.HEX)
f.wqe_index = ProtoField.uint24("adverb_star.wqe.index", "Index")
f.wqe_length = ProtoField.uint32("adverb_star.wqe.length", "Length")
f.wqe_va = ProtoField.uint64("adverb_star.wqe.va", "Address at the stateful side", base.HEX)
f.wqe_rkey = ProtoField.uint32("adverb_star.wqe.rkey", "Its key", base.HEX)
f.wqe_carried = ProtoField.bool("adverb_star.wqe.carried", "Its address travels", 8, nil, 0x40)
f.sge_length = ProtoField.uint32("adverb_star.sge.length", "Bytes at the stateless side")
f.sge_lkey = ProtoField.uint32("adverb_star.sge.lkey", "Their local key", base.HEX)
f.sge_addr = ProtoField.uint64("adverb_star.sge.addr", "Their address", base.HEX)
f.wqe_immediate = ProtoField.uint32("adverb_star.wqe.immediate", "Immediate, or key to invalidate", base.HEX)
f.cqe_flags = ProtoField.uint8("adverb_star.cqe.flags", "Flags", base.HEX)
f.cqe_status = ProtoField.uint8("adverb_star.cqe.status", "Status")
f.cqe_op = ProtoField.uint8("adverb_star.cqe.op", "Operation", base.DEC, OPS)
f.cqe_index = ProtoField.uint24("adverb_star.cqe.index", "Index")
f.cqe_length = ProtoField.uint32("adverb_star.cqe.length", "Bytes")
f.cqe_immediate = ProtoField.uint32("adverb_star.cqe.immediate", "Immediate, or invalidated key", base.HEX)
f.rnr_retries = ProtoField.uint32("adverb_star.rnr_retries", "RNR retries of these requests")
f.record_timeout = ProtoField.uint8("adverb_star.record.timeout", "Local ACK timeout")
f.record_retries = ProtoField.uint8("adverb_star.record.retries", "Retries")
f.record_rnr_retries = ProtoField.uint8("adverb_star.record.rnr_retries", "RNR retries")
f.record_rnr_timer = ProtoField.uint8("adverb_star.record.rnr_timer", "RNR timer")
f.record_depth = ProtoField.uint8("adverb_star.record.depth", "READs and atomics as requester")
f.record_dest_depth = ProtoField.uint8("adverb_star.record.dest_depth", "READs and atomics as responder")
f.record_features = ProtoField.uint8("adverb_star.record.features", "Features agreed on", base.HEX)
f.record_psn = ProtoField.uint24("adverb_star.record.psn", "First PSN", base.HEX)
f.record_sends = ProtoField.uint16("adverb_star.record.send_queue", "Send queue")
f.record_recvs = ProtoField.uint16("adverb_star.record.recv_queue", "Receive queue")
f.record_clock = ProtoField.uint32("adverb_star.record.clock", "Clock in us")
f.record_before = ProtoField.uint32("adverb_star.record.receives", "Receives before")
f.record_lifetime = ProtoField.uint32("adverb_star.record.lifetime", "Lifetime of a request in us")
f.record_ticket = ProtoField.uint64("adverb_star.record.ticket", "Ticket", base.HEX)
f.record_seal = ProtoField.uint64("adverb_star.record.seal", "Its seal", base.HEX)

local short = ProtoExpert.new("adverb_star.short", "Shorter than its headers", expert.group.MALFORMED, expert.severity.ERROR)
star.experts = { short }

local BTH_LEN, ICRC_LEN = 12, 4

-- Headers. Each is given the StaR header's flags, reads at `at` and gives the place behind it.
local function is_merged(flags)
  return bit.band(flags, 0x05) == 0x05
end

local function reth(tree, tvb, at, flags)
  if bit.band(flags, 0x04) ~= 0 then
    tree:add(f.index, tvb(at + 1, 3))
    tree:add(f.offset, tvb(at + 4, 4))
  else
    tree:add(f.va, tvb(at, 8))
  end
  tree:add(f.rkey, tvb(at + 8, 4))
  tree:add(f.deadline, tvb(at + 12, 4))
  return at + 16
end

-- An RD that completes what it is for has the completion in the fields that a message of one packet leaves empty.
local function reth_of_data(tree, tvb, at, flags)
  if not is_merged(flags) then return reth(tree, tvb, at, flags) end
  tree:add(f.index, tvb(at + 1, 3))
  tree:add(f.merged_number, tvb(at + 5, 3))
  tree:add(f.merged_immediate, tvb(at + 8, 4))
  tree:add(f.deadline, tvb(at + 12, 4))
  return at + 16
end

local function aeth(tree, tvb, at)
  tree:add(f.syndrome, tvb(at, 1))
  tree:add(f.answered_copy, tvb(at + 1, 1))
  tree:add(f.congested, tvb(at + 2, 1))
  tree:add(f.of_sends, tvb(at + 2, 1))
  tree:add(f.run, tvb(at + 3, 1))
  return at + 4
end

local function ticket(tree, tvb, at)
  tree:add(f.epoch, tvb(at, 1))
  tree:add(f.incarnation, tvb(at + 1, 1))
  tree:add(f.pd, tvb(at + 2, 2))
  for _, field in ipairs({ f.carried, f.mtu, f.may_write, f.may_read, f.may_atomic }) do
    tree:add(field, tvb(at + 4, 1))
  end
  tree:add(f.peer, tvb(at + 5, 3))
  tree:add(f.seal, tvb(at + 8, 8))
  return at + 16
end

-- The StaR header; what its two numbers and its lowest flag are depends on the packet.
local function header(count, value, mark)
  return function(tree, tvb, at, flags)
    for _, field in ipairs({ f.op, mark or f.migration, f.recv_queue, f.posted, f.pool }) do
      tree:add(field, tvb(at, 1))
    end
    tree:add(f.copy, tvb(at + 1, 1))
    if count then tree:add(count, tvb(at + 2, 2)) end
    local shown = value
    if mark == f.merged and is_merged(flags) then shown = f.merged_flags end
    if shown then tree:add(shown, tvb(at + 4, 4)) end
    return at + 8
  end
end

-- Fields of a body: field, offset, bytes.
local HELLO = {
  { f.wish, 1, 1 }, { f.features, 2, 1 }, { f.hello_sends, 4, 2 }, { f.hello_recvs, 6, 2 }, { f.connections, 8, 4 },
  { f.threshold, 12, 4 }, { f.hello_clock, 16, 4 }, { f.window, 20, 2 }, { f.capacity, 22, 2 },
}
local WQE = {
  { f.wqe_op, 0, 1 }, { f.wqe_flags, 1, 1 }, { f.wqe_index, 5, 3 }, { f.wqe_length, 8, 4 }, { f.wqe_va, 12, 8 },
  { f.wqe_rkey, 20, 4 }, { f.wqe_immediate, 24, 4 }, { f.wqe_carried, 1, 1 },
}
local SGE = { { f.sge_length, 0, 4 }, { f.sge_lkey, 4, 4 }, { f.sge_addr, 8, 8 } }
local CQE = {
  { f.cqe_flags, 0, 1 }, { f.cqe_status, 1, 1 }, { f.cqe_op, 2, 1 }, { f.cqe_index, 5, 3 }, { f.cqe_length, 8, 4 },
  { f.cqe_immediate, 12, 4 },
}
local RECORD = {
  { f.record_timeout, 0, 1 }, { f.record_retries, 1, 1 }, { f.record_rnr_retries, 2, 1 }, { f.record_rnr_timer, 3, 1 },
  { f.record_depth, 4, 1 }, { f.record_dest_depth, 5, 1 }, { f.record_features, 6, 1 },
  { f.record_psn, 9, 3 }, { f.record_sends, 12, 2 },
  { f.record_recvs, 14, 2 }, { f.record_clock, 16, 4 }, { f.record_lifetime, 20, 4 }, { f.record_before, 24, 4 },
  { f.record_ticket, 32, 8 },
  { f.record_seal, 40, 8 },
}

local SWITCH = {
  { f.switch_step, 1, 1 }, { f.switch_to, 2, 1 }, { f.switch_epoch, 4, 4 }, { f.switch_first, 9, 3 },
  { f.switch_peer_first, 13, 3 }, { f.switch_next, 17, 3 }, { f.switch_peer_next, 21, 3 }, { f.switch_told, 24, 4 },
  { f.switch_connections, 28, 4 }, { f.switch_threshold, 32, 4 },
}

local function body(tree, tvb, at, fields)
  for _, field in ipairs(fields) do
    tree:add(field[1], tvb(at + field[2], field[3]))
  end
end

local function entries(fields, len)
  return function(tree, tvb, at, left)
    while left >= len do
      body(tree, tvb, at, fields)
      at, left = at + len, left - len
    end
  end
end

local function hello(tree, tvb, at, left, flags)
  if bit.band(flags, 0x01) ~= 0 then
    if left == 36 then body(tree, tvb, at, SWITCH) end
    return
  end
  if left == 24 then body(tree, tvb, at, HELLO) end
end

-- Inline bytes may stand between the entries, so only the first one's place is sure when there are any.
local function wqes(tree, tvb, at, left, flags)
  if bit.band(flags, 0x01) ~= 0 then
    if left == 48 then body(tree, tvb, at, RECORD) end
    return
  end
  while left >= 32 do
    body(tree, tvb, at, WQE)
    local op, marks = tvb(at, 1):uint(), tvb(at + 1, 1):uint()
    local inline, carried = bit.band(marks, 8) ~= 0, bit.band(marks, 0x40) ~= 0
    local data = inline and bit.band(tvb(at + 8, 4):uint() + 3, bit.bnot(3)) or 0
    if op == 4 or op == 5 then data = 16 end
    local len = 32 + (carried and 16 or 0) + data
    if len < 32 or len > left then return end
    if carried then body(tree, tvb, at + 32, SGE) end
    at, left = at + len, left - len
  end
end

local event = header(f.entries, f.rnr_retries)
local refused, accepted = header(f.entries, f.refusal), header(f.entries, f.completions)
local function acknowledge(tree, tvb, at, flags)
  return (bit.band(flags, 0x01) ~= 0 and refused or accepted)(tree, tvb, at, flags)
end
local function answer(tree, tvb, at)
  tree:add(f.clock, tvb(at, 4))
  tree:add(f.order, tvb(at + 4, 4))
  return at + 8
end

-- Opcode: name, bytes of all headers, bytes before the StaR header, body, headers.
local PACKETS = {
  [0xf4] = { "EA (WQE)", 24, 0, nil, acknowledge, ticket },
  [0xf5] = { "GDA", 12, 4, nil, aeth, answer },
  [0xf9] = { "Hello", 8, 0, hello, header(nil, nil) },
  [0xfa] = { "WQEP", 8, 0, wqes, event },
  [0xfb] = { "CQEP", 24, 0, entries(CQE, 16), header(f.entries, f.closing, f.final), ticket },
  [0xfc] = { "EA (CQE)", 8, 0, nil, header(nil, f.receives) },
  [0xfd] = { "RD", 40, 16, nil, reth_of_data, header(nil, f.following, f.merged), ticket },
  [0xfe] = { "RDA", 12, 4, nil, aeth, answer },
  [0xff] = { "GD", 40, 16, nil, reth, header(f.asked, f.following, f.burst), ticket },
}

local opcode_of = Field.new("infiniband.bth.opcode")
local pad_of = Field.new("infiniband.bth.padcnt")

function star.dissector(tvb, pinfo, root)
  local pads = { pad_of() }
  for i, opcode in ipairs({ opcode_of() }) do
    local packet = PACKETS[opcode.value]
    if packet then
      local at = opcode.offset + BTH_LEN
      local tree = root:add(star, tvb(opcode.offset))
      tree:add(f.packet, tvb(opcode.offset, 1), packet[1])
      pinfo.cols.info = "StaR " .. packet[1]
      local left = tvb:reported_len() - at - packet[2] - ICRC_LEN - (pads[i] and pads[i].value or 0)
      if left < 0 or tvb:captured_len() < at + packet[2] then
        tree:add_proto_expert_info(short)
      else
        local flags = tvb(at + packet[3], 1):uint()
        for h = 5, #packet do
          at = packet[h](tree, tvb, at, flags)
        end
        if packet[4] and tvb:captured_len() >= at + left then
          packet[4](tree, tvb, at, left, flags)
        end
      end
    end
  end
end

register_postdissector(star)
