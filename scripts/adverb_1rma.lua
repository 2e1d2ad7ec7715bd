-- Reads 1RMA's messages: UDP port 61113. The layout stands in crates/wire/src/one_rma.rs. Payloads stay encrypted.
--
--     tshark -X lua_script:scripts/adverb_1rma.lua -r run.pcap -Y adverb_1rma
--     wireshark -X lua_script:scripts/adverb_1rma.lua run.pcap

local rma = Proto("adverb_1rma", "1RMA")

local KINDS = {
  [1] = "Read Request",
  [2] = "Read Response",
  [3] = "Write Request",
  [4] = "Rekey Request",
  [5] = "Solicitation",
  [6] = "Write Data",
  [7] = "Completion",
  [8] = "NACK",
  [9] = "Authentication Failure",
}
local STATUSES = { [0] = "OK", [1] = "REFUSED" }

local f = rma.fields
f.version = ProtoField.uint8("adverb_1rma.version", "Version")
f.kind = ProtoField.uint8("adverb_1rma.kind", "Kind", base.DEC, KINDS)
f.class = ProtoField.uint8("adverb_1rma.class", "Class of service")
f.status = ProtoField.uint8("adverb_1rma.status", "Status", base.DEC, STATUSES)
f.slot = ProtoField.uint32("adverb_1rma.slot", "Command slot of the initiator")
f.ticket = ProtoField.uint32("adverb_1rma.ticket", "Ticket", base.HEX)
f.counter = ProtoField.uint64("adverb_1rma.counter", "Message counter", base.HEX)
f.pid = ProtoField.uint32("adverb_1rma.pid", "Process of the initiator")
f.region = ProtoField.uint32("adverb_1rma.region", "Region", base.HEX)
f.offset = ProtoField.uint64("adverb_1rma.offset", "Offset in the region")
f.length = ProtoField.uint16("adverb_1rma.length", "Bytes of the operation")
f.open = ProtoField.uint32("adverb_1rma.open_ns", "Nanoseconds for which data are taken")
f.piece_offset = ProtoField.uint16("adverb_1rma.piece.offset", "Offset in the operation")
f.piece_length = ProtoField.uint16("adverb_1rma.piece.length", "Bytes of this piece")
f.payload = ProtoField.bytes("adverb_1rma.payload", "Encrypted payload")
f.tag = ProtoField.bytes("adverb_1rma.tag", "Tag")

local bad_length = ProtoExpert.new("adverb_1rma.bad_length", "Not as long as its header says",
    expert.group.MALFORMED, expert.severity.ERROR)
local unknown = ProtoExpert.new("adverb_1rma.unknown", "Another version, or no such kind",
    expert.group.MALFORMED, expert.severity.ERROR)
rma.experts = { bad_length, unknown }

local HEAD, TAG = 16, 16

local function request(tree, tvb)
  tree:add(f.class, tvb(2, 1))
  tree:add(f.slot, tvb(4, 4))
  tree:add(f.pid, tvb(16, 4))
  tree:add(f.region, tvb(20, 4))
  tree:add(f.offset, tvb(24, 8))
  tree:add(f.length, tvb(32, 2))
end

local function piece(to)
  return function(tree, tvb)
    tree:add(to, tvb(4, 4))
    tree:add(f.piece_offset, tvb(16, 2))
    tree:add(f.piece_length, tvb(18, 2))
  end
end

local function solicitation(tree, tvb)
  tree:add(f.slot, tvb(4, 4))
  tree:add(f.ticket, tvb(16, 4))
  tree:add(f.open, tvb(20, 4))
end

local function answer(tree, tvb)
  tree:add(f.slot, tvb(4, 4))
end

local function completion(tree, tvb)
  tree:add(f.status, tvb(2, 1))
  answer(tree, tvb)
end

-- Bytes of the header after the first 16, and who reads it.
local REST = {
  [1] = { 20, request },
  [2] = { 4, piece(f.slot) },
  [3] = { 20, request },
  [4] = { 20, request },
  [5] = { 8, solicitation },
  [6] = { 4, piece(f.ticket) },
  [7] = { 0, completion },
  [8] = { 0, answer },
  [9] = { 0, answer },
}

function rma.dissector(tvb, pinfo, root)
  local length = tvb:reported_len()
  local tree = root:add(rma, tvb())
  pinfo.cols.protocol = "1RMA"
  if length < HEAD + TAG or tvb:captured_len() < length then
    tree:add_proto_expert_info(bad_length)
    return
  end
  local kind = tvb(1, 1):uint()
  tree:add(f.version, tvb(0, 1))
  tree:add(f.kind, tvb(1, 1))
  local rest = tvb(0, 1):uint() == 1 and REST[kind]
  if not rest then
    tree:add_proto_expert_info(unknown)
    return
  end
  pinfo.cols.info = KINDS[kind]
  tree:add(f.counter, tvb(8, 8))
  local header = HEAD + rest[1]
  if length < header + TAG then
    tree:add_proto_expert_info(bad_length)
    return
  end
  rest[2](tree, tvb)
  local payload = length - header - TAG
  local told = (kind == 2 or kind == 6) and tvb(18, 2):uint() or 0
  if payload ~= told then
    tree:add_proto_expert_info(bad_length)
  end
  if payload > 0 then
    tree:add(f.payload, tvb(header, payload))
  end
  tree:add(f.tag, tvb(length - TAG, TAG))
end

DissectorTable.get("udp.port"):add(61113, rma)
