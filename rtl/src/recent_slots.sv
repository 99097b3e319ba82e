// SPDX-License-Identifier: Apache-2.0
//
// What the last write of each station left behind: the slot that holds its key, if any, with the
// item's pointer, length and expiry, and which slots of the bucket are free. A request for the same
// key that came while such a write was under way is decided by this instead of by memory, which may
// not have the write yet. Requests are decided in order, so this is the state that they are to see.

module recent_slots #(
  parameter int unsigned Slots = 8,
  parameter int unsigned StationBits = 4,
  localparam int unsigned SlotWidth = $clog2(Slots)
) (
  input  logic                   clk_i,

  input  logic                   put_i,
  input  logic [StationBits-1:0] put_station_i,
  input  logic [Slots-1:0]       put_free_i,
  input  logic                   put_has_item_i,
  input  logic [SlotWidth-1:0]   put_slot_i,
  input  logic [47:0]            put_pointer_i,
  input  logic [23:0]            put_vlen_i,
  input  logic [31:0]            put_expiry_i,

  input  logic                   take_i,     // read what is put out
  input  logic [StationBits-1:0] station_i,
  output logic [Slots-1:0]       free_o,
  output logic [Slots-1:0]       holder_o,   // the slot that holds the key
  output logic [47:0]            pointer_o,
  output logic [23:0]            vlen_o,
  output logic [31:0]            expiry_o
);

  localparam int unsigned Width = Slots + 1 + SlotWidth + 48 + 24 + 32;

  logic [Width-1:0]     store [2 ** StationBits];
  logic [SlotWidth-1:0] slot_q;
  logic                 has_item_q;

  always_ff @(posedge clk_i) begin
    if (put_i) begin
      store[put_station_i] <= {put_free_i, put_has_item_i, put_slot_i, put_pointer_i, put_vlen_i,
                               put_expiry_i};
    end
    if (take_i) begin
      {free_o, has_item_q, slot_q, pointer_o, vlen_o, expiry_o} <= store[station_i];
    end
  end

  always_comb begin
    holder_o         = '0;
    holder_o[slot_q] = has_item_q;
  end

endmodule
