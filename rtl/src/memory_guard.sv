// SPDX-License-Identifier: Apache-2.0
//
// Keeps the memory port whole when the table is reset while accesses are on their way. It counts
// the beats that reads wait for outside of the table's reset. After a reset it ends the line that
// was being written, with writes of no words, and discards what older reads bring back; only then
// may the table use the port again, and every return is its own.
//
// `mem_rst_ni` is the reset of the memory's side: it falls at power-up, and whenever the memory
// forgets what it was asked for.

module memory_guard
  import ht_pkg::*;
#(
  parameter int unsigned BeatWords = 8,
  parameter int unsigned LineBeats = 1,
  parameter int unsigned Outstanding = 160,   // beats that reads wait for, at most
  localparam int unsigned BeatWidth = 64 * BeatWords
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 mem_rst_ni,

  input  logic                 valid_i,
  output logic                 ready_o,
  input  memory_access_t       access_i,
  input  logic [BeatWidth-1:0] data_i,
  input  logic [BeatWords-1:0] mask_i,
  output logic                 return_valid_o,

  output logic                 mem_valid_o,
  input  logic                 mem_ready_i,
  output memory_access_t       mem_o,
  output logic [BeatWidth-1:0] mem_data_o,
  output logic [BeatWords-1:0] mem_mask_o,
  input  logic                 mem_return_valid_i
);

  localparam int unsigned CountWidth = $clog2(Outstanding + 1);
  localparam int unsigned PlaceWidth = LineBeats > 1 ? $clog2(LineBeats) : 1;
  localparam logic [PlaceWidth-1:0] Last = PlaceWidth'(LineBeats - 1);

  logic [CountWidth-1:0] waiting_q;   // beats that were asked for and have not come back
  logic                  is_inside_q; // of a line that is written
  logic [PlaceWidth-1:0] place_q;     // of the next beat in that line
  logic [31:0]           address_q;   // and its address
  logic                  is_open_q;   // the table has the port
  logic                  is_taken;

  assign is_taken       = mem_valid_o && mem_ready_i;
  assign mem_valid_o    = is_open_q ? valid_i : is_inside_q;
  assign ready_o        = is_open_q && mem_ready_i;
  assign mem_data_o     = data_i;
  assign mem_mask_o     = is_open_q ? mask_i : '0;
  assign return_valid_o = is_open_q && mem_return_valid_i;
  always_comb begin
    mem_o = access_i;
    if (!is_open_q) begin
      mem_o = '{write: 1'b1, last: place_q == Last, is_value: 1'b0, count: 5'd1,
                address: address_q};
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) is_open_q <= 1'b0;
    else if (waiting_q == '0 && !is_inside_q) is_open_q <= 1'b1;
  end

  always_ff @(posedge clk_i or negedge mem_rst_ni) begin
    if (!mem_rst_ni) begin
      waiting_q   <= '0;
      is_inside_q <= 1'b0;
      place_q     <= '0;
      address_q   <= '0;
    end else begin
      waiting_q <= waiting_q - CountWidth'(mem_return_valid_i)
                   + (is_taken && !mem_o.write ? CountWidth'(mem_o.count) : '0);
      if (is_taken && mem_o.write) begin
        is_inside_q <= !mem_o.last;
        place_q     <= mem_o.last ? '0 : place_q + 1'b1;
        address_q   <= mem_o.address + 32'd1;
      end
    end
  end

`ifdef FORMAL
  // The proof begins with a reset of both sides; the table's may come again at any time.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni && !mem_rst_ni);
  always_comb if (f_started_q) assume (mem_rst_ni);

  // Beats that the table itself waits for, since its reset.
  logic [CountWidth-1:0] f_own_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) f_own_q <= '0;
    else f_own_q <= f_own_q - CountWidth'(return_valid_o)
                    + (valid_i && ready_o && !access_i.write ? CountWidth'(access_i.count) : '0);
  end
  always_comb begin
    if (f_started_q) begin
      // The table reserves space, memory returns what it was asked for, and a line is whole.
      assume (!mem_return_valid_i || waiting_q != '0);
      assume (access_i.count != '0
              && 32'(waiting_q) + 32'(access_i.count) <= Outstanding);
      if (is_open_q && valid_i) begin
        assume (!is_inside_q || access_i.write);
        assume (!access_i.write || access_i.is_value || access_i.last == (place_q == Last));
        assume (!access_i.is_value || (access_i.last && !is_inside_q));
      end
      assert (32'(waiting_q) <= Outstanding);
      assert (!is_open_q || f_own_q == waiting_q);
      assert (is_open_q || f_own_q == '0);
      assert (is_inside_q == (place_q != '0) && 32'(place_q) < LineBeats);
    end
  end
`endif

endmodule
