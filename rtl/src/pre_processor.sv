// SPDX-License-Identifier: Apache-2.0
//
// Checks each request before it enters, so that later stages see only well-formed requests.
//
// A request is a beat of `meta`, the beats of its key and those of its value; a key or value of no
// bytes sends none. Whatever the lengths say, the key leaves with as many beats as the request then
// names, and the packet buffer holds as many as its value has: short ones are filled with zeros,
// long ones cut, and the request is answered 0x0004 without any effect. A request is passed on when
// its key and its value are complete, so no later stage ever waits for the client.

module pre_processor
  import ht_pkg::*;
#(
  parameter int unsigned KeyBytes = 16,
  parameter int unsigned ValueBytes = 1024,
  parameter int unsigned PacketBeats = 512,
  parameter int unsigned Requests = 16
) (
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic        meta_valid_i,
  output logic        meta_ready_o,
  input  request_t    meta_i,
  input  logic        key_valid_i,
  output logic        key_ready_o,
  input  beat_t       key_i,
  input  logic        val_valid_i,
  output logic        val_ready_o,
  input  beat_t       val_i,

  output logic        meta_valid_o,
  input  logic        meta_ready_i,
  output meta_t       meta_o,
  output logic        key_valid_o,
  input  logic        key_ready_i,
  output key_beat_t   key_o,
  output logic        val_valid_o,
  input  logic        val_ready_i,
  output logic [63:0] val_o
);

  if (KeyBytes < 1 || KeyBytes > 250) begin : gen_key_check
    $error("pre_processor: KeyBytes must be 1 to 250");
  end
  if (PacketBeats * 8 < 2 * ValueBytes) begin : gen_packet_check
    $error("pre_processor: the packet buffer must hold two of the largest values");
  end

  // Classification of the request.
  meta_t classified;
  logic  is_key_kept, is_too_large;

  assign is_too_large = meta_i.vlen > 24'(ValueBytes);
  assign is_key_kept  = classified.kind != KindNone;

  always_comb begin
    classified = '{request: meta_i, kind: KindNone, quiet: 1'b0, drain: 1'b0, status: StatusOk};
    unique case (meta_i.opcode)
      OpGet, OpGetK:   classified.kind = KindGet;
      OpGetQ, OpGetKQ: begin
        classified.kind  = KindGet;
        classified.quiet = 1'b1;
      end
      OpSet:    classified.kind = KindSet;
      OpSetQ: begin
        classified.kind  = KindSet;
        classified.quiet = 1'b1;
      end
      OpDelete: classified.kind = KindDelete;
      OpDeleteQ: begin
        classified.kind  = KindDelete;
        classified.quiet = 1'b1;
      end
      OpNoop, OpVersion: ;
      default: classified.status = StatusUnknown;
    endcase
    if (classified.kind != KindNone && (meta_i.klen == '0 || meta_i.klen > 8'(KeyBytes))) begin
      classified.kind   = KindNone;
      classified.status = StatusInvalid;
    end
    if (meta_i.has_cas && (classified.kind == KindSet || classified.kind == KindDelete)) begin
      // Items have no CAS ids; to write anyway would lose another client's update.
      classified.kind   = KindNone;
      classified.status = StatusNotSupported;
    end
    if (meta_i.is_misshapen) begin
      classified.kind   = KindNone;
      classified.status = StatusInvalid;
    end
    if (classified.kind == KindSet && is_too_large) begin
      // As memcached does: what cannot be stored must not leave the old value behind.
      classified.kind   = KindDelete;
      classified.status = StatusTooLarge;
    end
    if (classified.kind == KindNone) classified.request.klen = '0;
  end

  // One entry a request for each of the three streams.
  typedef struct packed {
    logic [7:0] klen;  // as the request says
    logic       keep;
  } key_task_t;
  typedef struct packed {
    logic [23:0] vlen;
    logic        keep;
  } val_task_t;

  key_task_t key_task;
  val_task_t val_task;
  meta_t     meta;
  logic meta_in, meta_ready, meta_valid, meta_pop;
  logic key_task_ready, key_task_valid, key_task_pop, val_task_ready, val_task_valid, val_task_pop;
  logic key_done_ready, key_done_valid, key_wrong, key_done, key_is_wrong;
  logic val_done_ready, val_done_valid, val_wrong, val_done, val_is_wrong;

  assign meta_ready_o = meta_ready && key_task_ready && val_task_ready;
  assign meta_in      = meta_valid_i && meta_ready_o;

  fifo #(.Width($bits(meta_t)), .Depth(Requests)) u_meta (
    .clk_i, .rst_ni, .valid_i(meta_in), .ready_o(meta_ready), .data_i(classified),
    .valid_o(meta_valid), .ready_i(meta_pop), .data_o(meta), .level_o()
  );
  fifo #(.Width($bits(key_task_t)), .Depth(Requests)) u_key_tasks (
    .clk_i, .rst_ni, .valid_i(meta_in), .ready_o(key_task_ready),
    .data_i({meta_i.klen, is_key_kept}),
    .valid_o(key_task_valid), .ready_i(key_task_pop), .data_o(key_task), .level_o()
  );
  fifo #(.Width($bits(val_task_t)), .Depth(Requests)) u_val_tasks (
    .clk_i, .rst_ni, .valid_i(meta_in), .ready_o(val_task_ready),
    .data_i({meta_i.vlen, classified.kind == KindSet}),
    .valid_o(val_task_valid), .ready_i(val_task_pop), .data_o(val_task), .level_o()
  );

  // The key stream, shaped to the stated length.
  logic [63:0] key_padded;
  logic        key_fits;
  shaper #(.LengthWidth(8)) u_key (
    .clk_i, .rst_ni,
    .task_valid_i(key_task_valid && key_done_ready), .task_pop_o(key_task_pop),
    .length_i(key_task.klen), .keep_i(key_task.keep),
    .valid_i(key_valid_i), .ready_o(key_ready_o), .data_i(key_i.data), .strobe_i(key_i.keep),
    .last_i(key_i.last),
    .valid_o(key_valid_o), .ready_i(key_ready_i), .data_o(key_padded), .last_o(key_o.last),
    .done_o(key_done), .is_wrong_o(key_is_wrong)
  );
  assign key_o.data = key_padded;
  assign key_o.klen = key_task.klen;
  fifo #(.Width(1), .Depth(Requests)) u_key_done (
    .clk_i, .rst_ni, .valid_i(key_done), .ready_o(key_done_ready), .data_i(key_is_wrong),
    .valid_o(key_done_valid), .ready_i(meta_pop), .data_o(key_wrong), .level_o()
  );

  // The value stream, shaped and stored in the packet buffer.
  logic        val_out_valid, val_out_ready;
  logic [63:0] val_out;
  shaper #(.LengthWidth(24)) u_val (
    .clk_i, .rst_ni,
    .task_valid_i(val_task_valid && val_done_ready), .task_pop_o(val_task_pop),
    .length_i(val_task.vlen), .keep_i(val_task.keep),
    .valid_i(val_valid_i), .ready_o(val_ready_o), .data_i(val_i.data), .strobe_i(val_i.keep),
    .last_i(val_i.last),
    .valid_o(val_out_valid), .ready_i(val_out_ready), .data_o(val_out), .last_o(),
    .done_o(val_done), .is_wrong_o(val_is_wrong)
  );
  fifo #(.Width(1), .Depth(Requests)) u_val_done (
    .clk_i, .rst_ni, .valid_i(val_done), .ready_o(val_done_ready), .data_i(val_is_wrong),
    .valid_o(val_done_valid), .ready_i(meta_pop), .data_o(val_wrong), .level_o()
  );
  fifo #(.Width(64), .Depth(PacketBeats), .InBlock(1'b1)) u_packets (
    .clk_i, .rst_ni, .valid_i(val_out_valid), .ready_o(val_out_ready), .data_i(val_out),
    .valid_o(val_valid_o), .ready_i(val_ready_i), .data_o(val_o), .level_o()
  );

  // A request leaves when its key and value are complete.
  assign meta_valid_o = meta_valid && key_done_valid && val_done_valid;
  assign meta_pop     = meta_valid_o && meta_ready_i;
  assign key_fits     = !key_wrong && !val_wrong;

  always_comb begin
    meta_o = meta;
    // A value in the packet buffer that will not be stored.
    if (meta.kind == KindSet && !key_fits) meta_o.drain = meta.request.vlen != '0;
    if (meta.kind != KindNone && !key_fits) begin
      // The key has been passed on already; it is read and compared without use.
      meta_o.kind   = KindGet;
      meta_o.status = StatusInvalid;
    end
  end

endmodule
