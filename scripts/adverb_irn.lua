-- Reads the headers of IRN's packets, which Wireshark's InfiniBand dissector leaves alone behind the BTH: their opcodes
-- are among those that IBTA leaves to manufacturers (0xc0 and up). The layout stands in crates/wire/src/irn.rs.
--
--     tshark -X lua_script:scripts/adverb_irn.lua -r run.pcap -Y adverb_irn
--     wireshark -X lua_script:scripts/adverb_irn.lua run.pcap

local irn = Proto("adverb_irn", "IRN")

local f = irn.fields
f.operation = ProtoField.string("adverb_irn.operation", "Operation")
f.va = ProtoField.uint64("adverb_irn.reth.va", "Address of this packet's bytes", base.HEX)
f.rkey = ProtoField.uint32("adverb_irn.reth.rkey", "Remote key", base.HEX)
f.length = ProtoField.uint32("adverb_irn.reth.length", "Bytes asked for")
f.following = ProtoField.uint32("adverb_irn.reth.following", "Bytes of the message after this packet", base.DEC, nil, 0x7fffffff)
f.reth_ordered = ProtoField.bool("adverb_irn.reth.ordered", "An earlier request must be executed first", 32, nil, 0x80000000)
f.immediate = ProtoField.uint32("adverb_irn.immediate", "Immediate", base.HEX)
f.invalidate = ProtoField.uint32("adverb_irn.invalidate", "Key to invalidate", base.HEX)
f.ordered = ProtoField.bool("adverb_irn.ordered", "An earlier request must be executed first", 8, nil, 0x01)
f.receive_sn = ProtoField.uint24("adverb_irn.receive_sn", "Sequence number of the receive")
f.offset = ProtoField.uint32("adverb_irn.offset", "Bytes of the message before this packet")
f.read_sn = ProtoField.uint24("adverb_irn.read_sn", "Sequence number of the READ or atomic")
f.awaited = ProtoField.uint32("adverb_irn.awaited", "Next response awaited", base.HEX)
f.runs = ProtoField.bool("adverb_irn.hello.runs", "The sender reads NACKs that name runs", 8, nil, 0x01)
f.masked = ProtoField.bool("adverb_irn.hello.masked", "The sender executes masked atomics", 8, nil, 0x02)
f.version = ProtoField.uint24("adverb_irn.hello.version", "Version")
f.window = ProtoField.uint32("adverb_irn.hello.window", "Packets that the sender can take in")
f.swap_add = ProtoField.uint64("adverb_irn.atomic.swap_add", "Swap or add", base.HEX)
f.compare = ProtoField.uint64("adverb_irn.atomic.compare", "Compare", base.HEX)
f.original = ProtoField.uint64("adverb_irn.atomic.original", "Value before", base.HEX)
f.syndrome = ProtoField.uint8("adverb_irn.aeth.syndrome", "Syndrome", base.HEX)
f.msn = ProtoField.uint24("adverb_irn.aeth.msn", "Messages completed")
f.cumulative = ProtoField.uint32("adverb_irn.ack.cumulative", "All before this PSN have arrived", base.HEX)
f.not_kept = ProtoField.bool("adverb_irn.sack.not_kept", "The packet was not kept", 8, nil, 0x01)
f.more = ProtoField.uint8("adverb_irn.sack.more", "Packets after it that have come, too", base.DEC, nil, 0xfe)
f.sack = ProtoField.uint24("adverb_irn.sack.psn", "Packet that triggered this", base.HEX)

local short = ProtoExpert.new("adverb_irn.short", "Shorter than its headers", expert.group.MALFORMED, expert.severity.ERROR)
irn.experts = { short }

local BTH_LEN, ICRC_LEN = 12, 4

-- Each reads its header at `at` and gives the place behind it.
local function reth(write)
  return function(tree, tvb, at)
    tree:add(f.va, tvb(at, 8))
    tree:add(f.rkey, tvb(at + 8, 4))
    if write then
      tree:add(f.following, tvb(at + 12, 4))
      tree:add(f.reth_ordered, tvb(at + 12, 4))
    else
      tree:add(f.length, tvb(at + 12, 4))
    end
    return at + 16
  end
end

local function immediate(tree, tvb, at)
  tree:add(f.immediate, tvb(at, 4))
  return at + 4
end

local function invalidate(tree, tvb, at)
  tree:add(f.invalidate, tvb(at, 4))
  return at + 4
end

local function of_message(tree, tvb, at)
  tree:add(f.ordered, tvb(at, 1))
  tree:add(f.receive_sn, tvb(at + 1, 3))
  tree:add(f.offset, tvb(at + 4, 4))
  return at + 8
end

local function of_read(tree, tvb, at)
  tree:add(f.read_sn, tvb(at + 1, 3))
  tree:add(f.awaited, tvb(at + 4, 4))
  return at + 8
end

local function of_hello(tree, tvb, at)
  tree:add(f.runs, tvb(at, 1))
  tree:add(f.masked, tvb(at, 1))
  tree:add(f.version, tvb(at + 1, 3))
  tree:add(f.window, tvb(at + 4, 4))
  return at + 8
end

local function atomic(tree, tvb, at)
  tree:add(f.va, tvb(at, 8))
  tree:add(f.rkey, tvb(at + 8, 4))
  tree:add(f.swap_add, tvb(at + 12, 8))
  tree:add(f.compare, tvb(at + 20, 8))
  return at + 28
end

local function original(tree, tvb, at)
  tree:add(f.original, tvb(at, 8))
  return at + 8
end

local function aeth(tree, tvb, at)
  tree:add(f.syndrome, tvb(at, 1))
  tree:add(f.msn, tvb(at + 1, 3))
  return at + 4
end

local function sack(tree, tvb, at)
  -- The BTH's PSN is the cumulative acknowledgement; AETH and BTH lie before this header.
  tree:add(f.cumulative, tvb(at - 8, 4), tvb(at - 7, 3):uint())
  tree:add(f.not_kept, tvb(at, 1))
  tree:add(f.more, tvb(at, 1))
  tree:add(f.sack, tvb(at + 1, 3))
  return at + 4
end

local write, read = reth(true), reth(false)
-- Low five bits of the opcode: name, bytes of all headers, headers.
local OPERATIONS = {
  [0x00] = { "SEND First", 8, of_message },
  [0x01] = { "SEND Middle", 8, of_message },
  [0x02] = { "SEND Last", 8, of_message },
  [0x03] = { "SEND Last with Immediate", 12, immediate, of_message },
  [0x04] = { "SEND Only", 8, of_message },
  [0x05] = { "SEND Only with Immediate", 12, immediate, of_message },
  [0x06] = { "WRITE First", 16, write },
  [0x07] = { "WRITE Middle", 16, write },
  [0x08] = { "WRITE Last", 16, write },
  [0x09] = { "WRITE Last with Immediate", 28, write, immediate, of_message },
  [0x0a] = { "WRITE Only", 16, write },
  [0x0b] = { "WRITE Only with Immediate", 28, write, immediate, of_message },
  [0x0c] = { "READ Request", 24, read, of_read },
  [0x0d] = { "READ Response First", 4, aeth },
  [0x0e] = { "READ Response Middle", 0 },
  [0x0f] = { "READ Response Last", 4, aeth },
  [0x10] = { "READ Response Only", 4, aeth },
  [0x11] = { "Acknowledge", 8, aeth, sack },
  [0x12] = { "Atomic Acknowledge", 12, aeth, original },
  [0x13] = { "Compare and Swap", 36, atomic, of_read },
  [0x14] = { "Fetch and Add", 36, atomic, of_read },
  [0x16] = { "SEND Last with Invalidate", 12, invalidate, of_message },
  [0x17] = { "SEND Only with Invalidate", 12, invalidate, of_message },
  [0x18] = { "READ Acknowledge", 8, aeth, sack },
  [0x19] = { "Hello", 8, of_hello },
  [0x1a] = { "Masked Compare and Swap", 36, atomic, of_read },
  [0x1b] = { "Masked Fetch and Add", 36, atomic, of_read },
}

local opcode_of = Field.new("infiniband.bth.opcode")

function irn.dissector(tvb, pinfo, root)
  for _, opcode in ipairs({ opcode_of() }) do
    local operation = opcode.value >= 0xc0 and opcode.value < 0xe0 and OPERATIONS[opcode.value - 0xc0]
    if operation then
      local at = opcode.offset + BTH_LEN
      local tree = root:add(irn, tvb(opcode.offset))
      tree:add(f.operation, tvb(opcode.offset, 1), operation[1])
      pinfo.cols.info = "IRN " .. operation[1]
      if tvb:reported_len() < at + operation[2] + ICRC_LEN or tvb:captured_len() < at + operation[2] then
        tree:add_proto_expert_info(short)
      else
        for i = 3, #operation do
          at = operation[i](tree, tvb, at)
        end
      end
    end
  end
end

register_postdissector(irn)
