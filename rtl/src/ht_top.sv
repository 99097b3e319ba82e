// SPDX-License-Identifier: Apache-2.0
//
// The pipelined hash table with its value store, of FPL 2013:
//
//   requests -> pre-processor -> hash unit -> concurrency control -> read unit -> memory
//                     |  recent keys ---------------^              |             |
//                     |  key buffer -----------------------------> comparators <-----+
//                     |                                                |             |
//                     |                                            write unit -------+
//                     +-- packet buffer -----------------------> value store <-------+
//                                                                  |
//   answers <------------------------------------------- post-processor
//
// Three streams in (meta, key, value), two out (meta, value), in AXI-Stream's manner; one port of
// memory. It cannot deadlock: a read reserves the space of its return before it is issued; older
// accesses go before younger ones; a request enters with its key and value complete; a conflict
// stalls only earlier stages; and answers never wait for requests.

module ht_top
  import ht_pkg::*;
#(
  parameter int unsigned Slots = 8,
  parameter int unsigned SlotsPerBeat = 8,
  parameter int unsigned StripeBytes = 8,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyBytes = 16,
  parameter int unsigned HeaderBytes = 16,  // in front of the key, if the terms are not behind it
  parameter bit          TermsLast = 1'b1,
  parameter int unsigned BucketBits = 10,
  parameter bit          HashRing = 1'b0,
  parameter int unsigned HashLanes = 6,
  parameter int unsigned Writers = 16,      // writes in the critical section
  parameter int unsigned CounterBits = 0,   // log2 of conflict counters; 0: compare addresses
  // log2 of the keys whose last write is known
  parameter int unsigned StationBits = CounterBits > 4 ? 5 : 4,
  parameter int unsigned Inflight = 64,     // requests between read unit and comparators
  parameter int unsigned ReturnBeats = 128, // line beats in flight; more for slower memory
  parameter int unsigned ValueReturnBeats = 32,
  parameter int unsigned ValueBytes = 1024, // the largest value
  parameter int unsigned PacketBeats = 512,
  parameter int unsigned LogBits = 16,      // log2 of the beats of all values
  parameter int unsigned PositionBits = 48, // of a position in the log; fewer only for tests
  localparam int unsigned AddressWidth = 32,
  localparam int unsigned StripeWords = StripeBytes / 8,
  localparam int unsigned BeatWords = StripeWords * SlotsPerBeat,
  localparam int unsigned BeatWidth = 64 * BeatWords,
  localparam int unsigned LineBeats = Slots / SlotsPerBeat,
  localparam int unsigned TableBeats = (2 ** BucketBits) * Lines * LineBeats
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,       // at any time
  input  logic                    mem_rst_ni,   // of the memory's side
  input  logic [31:0]             now_i,
  input  logic [63:0]             seed_i,       // of the hash; stays as it is
  input  logic                    evict_i,
  input  logic                    table_only_i,

  input  logic                    meta_valid_i,
  output logic                    meta_ready_o,
  input  request_t                meta_i,
  input  logic                    key_valid_i,
  output logic                    key_ready_o,
  input  beat_t                   key_i,
  input  logic                    val_valid_i,
  output logic                    val_ready_o,
  input  beat_t                   val_i,

  output logic                    meta_valid_o,
  input  logic                    meta_ready_i,
  output response_t               meta_o,
  output logic                    val_valid_o,
  input  logic                    val_ready_i,
  output beat_t                   val_o,

  output logic                    mem_valid_o,
  input  logic                    mem_ready_i,
  output memory_access_t          mem_o,
  output logic [BeatWidth-1:0]    mem_data_o,
  output logic [BeatWords-1:0]    mem_mask_o,
  input  logic                    mem_return_valid_i,
  input  logic                    mem_return_is_value_i,
  input  logic [BeatWidth-1:0]    mem_return_i,

  // Events of this cycle, for the counters.
  output logic                    is_ready_o,   // the table was cleared
  output logic                    enter_o,      // a request enters the critical section
  output logic                    stall_o,      // a request waits for an older write
  output logic                    status_o,     // a request leaves the table
  output response_t               answer_o,     // with this answer
  output logic                    ended_o,      // a quiet request ended, in request order
  output logic [9:0]              probe_o,      // the stages' valid signals, for waveforms
  output logic [47:0]             head_o        // the position at which the log of values goes on
);

  localparam int unsigned KeyWord = TermsLast ? 1 : HeaderBytes / 8;
  localparam int unsigned TermsWord = TermsLast ? Lines * StripeWords - 1 : 1;
  localparam int unsigned LineWidth = $clog2(Lines + 1);
  localparam int unsigned StripeWidth = 64 * StripeWords;
  localparam int unsigned RecordKeyBytes = (Lines * StripeWords - KeyWord - 32'(TermsLast)) * 8;
  localparam int unsigned LargestBeats = (ValueBytes + 8 + 8 * BeatWords - 1) / (8 * BeatWords);

  if (Slots != 4 && Slots != 8 && Slots != 16) begin : gen_slots_check
    $error("ht_top: Slots must be 4, 8 or 16");
  end
  if (StripeBytes % 8 != 0 || StripeBytes == 0) begin : gen_stripe_check
    $error("ht_top: StripeBytes must be a multiple of 8");
  end
  if (SlotsPerBeat == 0 || Slots % SlotsPerBeat != 0) begin : gen_beat_check
    $error("ht_top: SlotsPerBeat must divide Slots");
  end
  if (!TermsLast && (HeaderBytes % 8 != 0 || HeaderBytes < 16)) begin : gen_header_check
    $error("ht_top: HeaderBytes must be a multiple of 8 and at least 16");
  end
  if (KeyBytes > RecordKeyBytes) begin : gen_key_check
    $error("ht_top: a key of KeyBytes and its header must fit Lines stripes");
  end
  if (ReturnBeats < LineBeats || ReturnBeats % LineBeats != 0) begin : gen_return_check
    $error("ht_top: ReturnBeats must be a multiple of a line's beats");
  end

  // Pre-processing and hashing of requests.
  logic      is_clear, in_valid, in_ready, return_valid;
  logic      meta_valid, meta_ready, key_valid, key_ready, hash_key_ready, stripe_key_ready,
             recent_key_ready;
  meta_t     meta;
  key_beat_t key;
  logic      packet_valid, packet_ready;
  logic [63:0] packet;

  assign in_valid     = meta_valid_i && is_clear;
  assign meta_ready_o = in_ready && is_clear;
  assign is_ready_o   = is_clear;

  pre_processor #(.KeyBytes(KeyBytes), .ValueBytes(ValueBytes), .PacketBeats(PacketBeats)) u_pre (
    .clk_i, .rst_ni,
    .meta_valid_i(in_valid), .meta_ready_o(in_ready), .meta_i,
    .key_valid_i, .key_ready_o, .key_i, .val_valid_i, .val_ready_o, .val_i,
    .meta_valid_o(meta_valid), .meta_ready_i(meta_ready), .meta_o(meta),
    .key_valid_o(key_valid), .key_ready_i(key_ready), .key_o(key),
    .val_valid_o(packet_valid), .val_ready_i(packet_ready), .val_o(packet)
  );

  // Each beat of a key goes to the hash, to the key buffer and to the recent keys, whenever each is
  // ready for it.
  logic is_hashed_q, is_striped_q, is_recent_q;
  assign key_ready = (is_hashed_q || hash_key_ready) && (is_striped_q || stripe_key_ready)
                     && (is_recent_q || recent_key_ready);
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      is_hashed_q  <= 1'b0;
      is_striped_q <= 1'b0;
      is_recent_q  <= 1'b0;
    end else if (key_valid) begin
      is_hashed_q  <= !key_ready && (is_hashed_q || hash_key_ready);
      is_striped_q <= !key_ready && (is_striped_q || stripe_key_ready);
      is_recent_q  <= !key_ready && (is_recent_q || recent_key_ready);
    end
  end

  logic  hash_valid, hash_ready;
  hash_t hash;
  hash_unit #(.Ring(HashRing), .Lanes(HashLanes), .KeyBytes(KeyBytes)) u_hash (
    .clk_i, .rst_ni, .seed_i, .valid_i(key_valid && !is_hashed_q), .ready_o(hash_key_ready),
    .key_i(key),
    .valid_o(hash_valid), .ready_i(hash_ready), .hash_o(hash)
  );

  logic stripe_valid, stripe_ready, stripe_last;
  logic [StripeWidth-1:0] stripe;
  logic [StripeWords-1:0] stripe_mask;
  key_striper #(
    .StripeWords(StripeWords), .Lines(Lines), .KeyWord(KeyWord), .TermsWord(TermsWord),
    .Stripes(Inflight * 2 + 2 * Lines)
  ) u_striper (
    .clk_i, .rst_ni,
    .valid_i(key_valid && !is_striped_q), .ready_o(stripe_key_ready), .key_i(key),
    .valid_o(stripe_valid), .ready_i(stripe_ready), .stripe_o(stripe), .mask_o(stripe_mask),
    .last_o(stripe_last)
  );

  // Whether a request has the key of a write that came shortly before.
  logic       checked_valid, checked_ready, is_repeated, is_idle;
  logic [5:0] station;
  hash_t      checked_hash;
  recent_keys #(
    .KeyBytes(KeyBytes), .BucketBits(BucketBits), .CounterBits(CounterBits),
    .StationBits(StationBits)
  ) u_recent (
    .clk_i, .rst_ni, .key_valid_i(key_valid && !is_recent_q), .key_ready_o(recent_key_ready),
    .key_i(key),
    .request_valid_i(meta_valid && meta.request.klen != '0),
    .is_write_i(meta.kind == KindSet || meta.kind == KindDelete), .klen_i(meta.request.klen),
    .hash_valid_i(hash_valid), .hash_ready_o(hash_ready), .hash_i(hash), .is_idle_i(is_idle),
    .valid_o(checked_valid), .ready_i(checked_ready), .hash_o(checked_hash),
    .station_o(station), .is_repeated_o(is_repeated)
  );

  // The critical section.
  logic entered_valid, entered_ready, retire, sweep_valid, sweep_ready;
  logic [BucketBits-1:0] sweep_bucket;
  op_t  entered;
  concurrency_control #(
    .BucketBits(BucketBits), .Writers(Writers), .CounterBits(CounterBits)
  ) u_concurrency (
    .clk_i, .rst_ni, .now_i,
    .meta_valid_i(meta_valid), .meta_ready_o(meta_ready), .meta_i(meta),
    .hash_valid_i(checked_valid), .hash_ready_o(checked_ready), .hash_i(checked_hash),
    .station_i(station), .is_repeated_i(is_repeated),
    .sweep_valid_i(sweep_valid), .sweep_ready_o(sweep_ready), .sweep_bucket_i(sweep_bucket),
    .valid_o(entered_valid), .ready_i(entered_ready), .op_o(entered),
    .retire_i(retire), .is_idle_o(is_idle), .stall_o
  );
  assign enter_o = meta_valid && meta_ready;

  logic op_in_valid, op_in_ready, op_valid, op_ready, read_valid, read_ready, beat_taken;
  op_t  op_in, op;
  logic [AddressWidth-1:0] read_address;
  read_unit #(
    .StripeWords(StripeWords), .Lines(Lines), .LineBeats(LineBeats), .KeyWord(KeyWord),
    .TermsWord(TermsWord), .ReturnBeats(ReturnBeats), .AddressWidth(AddressWidth)
  ) u_read (
    .clk_i, .rst_ni, .valid_i(entered_valid), .ready_o(entered_ready), .op_i(entered),
    .op_valid_o(op_in_valid), .op_ready_i(op_in_ready), .op_o(op_in),
    .read_valid_o(read_valid), .read_ready_i(read_ready), .read_address_o(read_address),
    .beat_taken_i(beat_taken)
  );
  fifo #(.Width($bits(op_t)), .Depth(Inflight)) u_ops (
    .clk_i, .rst_ni, .valid_i(op_in_valid), .ready_o(op_in_ready), .data_i(op_in),
    .valid_o(op_valid), .ready_i(op_ready), .data_o(op), .level_o()
  );

  logic beat_valid, beat_ready;
  logic [BeatWidth-1:0] beat;
  fifo #(.Width(BeatWidth), .Depth(ReturnBeats), .InBlock(1'b1)) u_returns (
    .clk_i, .rst_ni, .valid_i(return_valid && !mem_return_is_value_i), .ready_o(),
    .data_i(mem_return_i), .valid_o(beat_valid), .ready_i(beat_ready), .data_o(beat), .level_o()
  );
  assign beat_taken = beat_valid && beat_ready;

  logic verdict_valid, verdict_ready;
  op_t  verdict_op;
  logic [Slots-1:0] match, free, expired, young, kept_free, kept_holder, put_free;
  logic [Slots:0] is_overwritten, is_young;
  logic [Slots-1:0][47:0] pointers;
  logic kept_take, put, put_has_item;
  logic [$clog2(Slots)-1:0] put_slot;
  logic [47:0] kept_pointer, put_pointer;
  logic [23:0] kept_vlen;
  logic [31:0] kept_expiry;
  logic [Slots-1:0][63:0] locators, terms;
  logic [LineWidth-1:0] wanted_line;
  logic [StripeWidth-1:0] wanted_stripe;
  logic [StripeWords-1:0] wanted_mask;
  compare_unit #(
    .Slots(Slots), .SlotsPerBeat(SlotsPerBeat), .StripeWords(StripeWords), .Lines(Lines),
    .KeyWord(KeyWord), .TermsWord(TermsWord)
  ) u_compare (
    .clk_i, .rst_ni, .op_valid_i(op_valid), .op_ready_o(op_ready), .op_i(op),
    .stripe_valid_i(stripe_valid), .stripe_ready_o(stripe_ready), .stripe_i(stripe),
    .mask_i(stripe_mask), .stripe_last_i(stripe_last),
    .beat_valid_i(beat_valid), .beat_ready_o(beat_ready), .beat_i(beat),
    .valid_o(verdict_valid), .ready_i(verdict_ready), .op_o(verdict_op),
    .match_o(match), .free_o(free), .expired_o(expired), .young_o(young), .locators_o(locators),
    .terms_o(terms), .pointers_o(pointers), .is_overwritten_i(is_overwritten),
    .is_young_i(is_young),
    .kept_take_o(kept_take), .kept_free_i(kept_free),
    .kept_holder_i(kept_holder), .kept_expiry_i(kept_expiry),
    .line_i(wanted_line), .stripe_o(wanted_stripe), .mask_o(wanted_mask)
  );

  logic append;
  logic [$clog2(LargestBeats+1)-1:0] append_beats;
  logic write_valid, write_ready, write_last;
  logic [AddressWidth-1:0] write_address;
  logic [BeatWidth-1:0] write_data;
  logic [BeatWords-1:0] write_mask;
  logic value_in_valid, value_in_ready, response_valid, response_ready;
  value_command_t value_in, value;
  response_t response;
  write_unit #(
    .Slots(Slots), .SlotsPerBeat(SlotsPerBeat), .StripeWords(StripeWords), .Lines(Lines),
    .KeyWord(KeyWord), .TermsWord(TermsWord), .ValueBytes(ValueBytes), .AddressWidth(AddressWidth)
  ) u_write (
    .clk_i, .rst_ni, .evict_i, .table_only_i,
    .valid_i(verdict_valid), .ready_o(verdict_ready), .op_i(verdict_op),
    .match_i(match), .free_i(free), .expired_i(expired), .young_i(young), .locators_i(locators),
    .terms_i(terms), .line_o(wanted_line), .stripe_i(wanted_stripe), .mask_i(wanted_mask),
    .kept_pointer_i(kept_pointer), .kept_vlen_i(kept_vlen),
    .put_o(put), .put_free_o(put_free), .put_has_item_o(put_has_item), .put_slot_o(put_slot),
    .put_pointer_o(put_pointer),
    .head_i(head_o), .append_o(append), .beats_o(append_beats),
    .write_valid_o(write_valid), .write_ready_i(write_ready), .write_address_o(write_address),
    .write_data_o(write_data), .write_mask_o(write_mask), .write_last_o(write_last),
    .retire_o(retire),
    .value_valid_o(value_in_valid), .value_ready_i(value_in_ready), .value_o(value_in),
    .response_valid_o(response_valid), .response_ready_i(response_ready), .response_o(response)
  );
  assign status_o = response_valid && response_ready;
  assign answer_o = response;

  // What writes leave behind for requests that are forwarded.
  recent_slots #(.Slots(Slots), .StationBits(StationBits)) u_kept (
    .clk_i, .put_i(put), .put_station_i(verdict_op.station[StationBits-1:0]),
    .put_free_i(put_free), .put_has_item_i(put_has_item), .put_slot_i(put_slot),
    .put_pointer_i(put_pointer), .put_vlen_i(verdict_op.meta.request.vlen),
    .put_expiry_i(verdict_op.meta.request.expiry),
    .take_i(kept_take), .station_i(op.station[StationBits-1:0]), .free_o(kept_free),
    .holder_o(kept_holder), .pointer_o(kept_pointer), .vlen_o(kept_vlen), .expiry_o(kept_expiry)
  );

  value_log #(
    .Slots(Slots + 1), .BucketBits(BucketBits), .PositionBits(PositionBits), .LogBits(LogBits),
    .Largest(LargestBeats)
  ) u_log (
    .clk_i, .rst_ni, .append_i(append), .beats_i(append_beats), .head_o,
    .pointers_i({kept_pointer, pointers}), .is_overwritten_o(is_overwritten), .is_young_o(is_young),
    .sweep_valid_o(sweep_valid), .sweep_bucket_o(sweep_bucket), .sweep_taken_i(sweep_ready)
  );

  // The value store and its command queue.
  logic value_valid, value_ready;
  fifo #(.Width($bits(value_command_t)), .Depth(16)) u_commands (
    .clk_i, .rst_ni, .valid_i(value_in_valid), .ready_o(value_in_ready), .data_i(value_in),
    .valid_o(value_valid), .ready_i(value_ready), .data_o(value), .level_o()
  );

  logic access_valid, access_ready, access_write, flags_valid, flags_ready;
  logic [AddressWidth-1:0] access_address;
  logic [BeatWidth-1:0] access_data;
  logic [BeatWords-1:0] access_mask;
  logic [31:0] flags;
  value_store #(
    .BeatWords(BeatWords), .LogBits(LogBits), .ReturnBeats(ValueReturnBeats),
    .Reads(ValueReturnBeats), .AddressWidth(AddressWidth)
  ) u_values (
    .clk_i, .rst_ni, .command_valid_i(value_valid), .command_ready_o(value_ready),
    .command_i(value), .val_valid_i(packet_valid), .val_ready_o(packet_ready), .val_i(packet),
    .access_valid_o(access_valid), .access_ready_i(access_ready), .access_write_o(access_write),
    .access_address_o(access_address), .access_data_o(access_data), .access_mask_o(access_mask),
    .return_valid_i(return_valid && mem_return_is_value_i), .return_i(mem_return_i),
    .flags_valid_o(flags_valid), .flags_ready_i(flags_ready), .flags_o(flags),
    .val_valid_o, .val_ready_i, .val_o
  );

  post_processor #(.Responses(Inflight)) u_post (
    .clk_i, .rst_ni, .table_only_i,
    .response_valid_i(response_valid), .response_ready_o(response_ready), .response_i(response),
    .flags_valid_i(flags_valid), .flags_ready_o(flags_ready), .flags_i(flags),
    .valid_o(meta_valid_o), .ready_i(meta_ready_i), .response_o(meta_o), .ended_o
  );

  assign probe_o = {val_valid_o, meta_valid_o, access_valid, write_valid, response_valid,
                    verdict_valid, beat_valid, read_valid && read_ready, hash_valid, key_valid};

  // The clearing of the table and the memory port.
  logic clear_valid, clear_last, header_valid, header_ready, header_last;
  logic [AddressWidth-1:0] clear_address, header_address;
  logic [BeatWords-1:0] header_mask;
  logic port_valid, port_ready;
  memory_access_t       port;
  logic [BeatWidth-1:0] port_data;
  logic [BeatWords-1:0] port_mask;
  table_clear #(
    .BucketBits(BucketBits), .Lines(Lines), .LineBeats(LineBeats),
    .TermsLine(TermsWord / StripeWords), .AddressWidth(AddressWidth)
  ) u_clear (
    .clk_i, .rst_ni, .is_done_o(is_clear), .write_valid_o(clear_valid),
    .write_ready_i(header_ready), .write_address_o(clear_address), .write_last_o(clear_last)
  );
  assign header_valid   = is_clear ? write_valid : clear_valid;
  assign header_address = is_clear ? write_address : clear_address;
  assign header_last    = is_clear ? write_last : clear_last;
  assign header_mask    = is_clear ? write_mask : '1;
  assign write_ready    = header_ready && is_clear;

  memory_arbiter #(
    .BeatWords(BeatWords), .LineBeats(LineBeats), .TableBeats(TableBeats),
    .AddressWidth(AddressWidth)
  ) u_memory (
    .clk_i, .rst_ni,
    .read_valid_i(read_valid), .read_ready_o(read_ready), .read_address_i(read_address),
    .write_valid_i(header_valid), .write_ready_o(header_ready), .write_address_i(header_address),
    .write_data_i(is_clear ? write_data : '0), .write_mask_i(header_mask),
    .write_last_i(header_last),
    .value_valid_i(access_valid), .value_ready_o(access_ready), .value_write_i(access_write),
    .value_address_i(access_address), .value_data_i(access_data), .value_mask_i(access_mask),
    .mem_valid_o(port_valid), .mem_ready_i(port_ready), .mem_o(port), .mem_data_o(port_data),
    .mem_mask_o(port_mask)
  );

  memory_guard #(
    .BeatWords(BeatWords), .LineBeats(LineBeats), .Outstanding(ReturnBeats + ValueReturnBeats)
  ) u_guard (
    .clk_i, .rst_ni, .mem_rst_ni,
    .valid_i(port_valid), .ready_o(port_ready), .access_i(port), .data_i(port_data),
    .mask_i(port_mask), .return_valid_o(return_valid),
    .mem_valid_o, .mem_ready_i, .mem_o, .mem_data_o, .mem_mask_o, .mem_return_valid_i
  );

endmodule
