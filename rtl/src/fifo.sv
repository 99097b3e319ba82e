// SPDX-License-Identifier: Apache-2.0
//
// A first-in first-out queue. A new entry in an empty queue is visible at once or, with `InBlock`,
// after three cycles: entries then lie in block RAM with an extra output register, and the two
// entries that wait at the output come on top of `Depth`.

module fifo #(
  parameter int unsigned Width = 8,
  parameter int unsigned Depth = 4,
  parameter bit          InBlock = 1'b0,
  localparam int unsigned LevelWidth = $clog2(Depth + 1)
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  valid_i,
  output logic                  ready_o,
  input  logic [Width-1:0]      data_i,
  output logic                  valid_o,
  input  logic                  ready_i,
  output logic [Width-1:0]      data_o,
  output logic [LevelWidth-1:0] level_o   // without the output registers
);

  localparam int unsigned PointerWidth = Depth > 1 ? $clog2(Depth) : 1;
  localparam logic [PointerWidth-1:0] Last = PointerWidth'(Depth - 1);

  logic [Width-1:0]        store [Depth];
  logic [PointerWidth-1:0] read_q, write_q;
  logic [LevelWidth-1:0]   level_q;
  logic                    is_full_q, has_entry_q;   // what the level says, without a comparison
  logic                    push, pop;

  assign ready_o = !is_full_q;
  assign level_o = level_q;
  assign push    = valid_i && ready_o;

  if (InBlock) begin : gen_block
    logic [Width-1:0] fetched_q;
    logic has_fetched_q, is_moved;
    assign is_moved = has_fetched_q && (!valid_o || ready_i);
    assign pop      = has_entry_q && (!has_fetched_q || is_moved);
    always_ff @(posedge clk_i) begin
      if (pop) fetched_q <= store[read_q];
      if (is_moved) data_o <= fetched_q;
    end
    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        has_fetched_q <= 1'b0;
        valid_o       <= 1'b0;
      end else begin
        has_fetched_q <= pop || (has_fetched_q && !is_moved);
        valid_o       <= is_moved || (valid_o && !ready_i);
      end
    end
  end else begin : gen_direct
    assign valid_o = has_entry_q;
    assign data_o  = store[read_q];
    assign pop     = valid_o && ready_i;
  end

  always_ff @(posedge clk_i) begin
    if (push) store[write_q] <= data_i;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      read_q      <= '0;
      write_q     <= '0;
      level_q     <= '0;
      is_full_q   <= 1'b0;
      has_entry_q <= 1'b0;
    end else begin
      is_full_q   <= !pop && (is_full_q || (push && level_q == LevelWidth'(Depth - 1)));
      has_entry_q <= push || (has_entry_q && !(pop && level_q == LevelWidth'(1)));
      if (push) write_q <= write_q == Last ? '0 : write_q + 1'b1;
      if (pop) read_q <= read_q == Last ? '0 : read_q + 1'b1;
      if (push && !pop) level_q <= level_q + 1'b1;
      if (pop && !push) level_q <= level_q - 1'b1;
    end
  end

`ifdef FORMAL
  // The proof begins with a reset.
  logic f_started_q = 1'b0;
  always_ff @(posedge clk_i) f_started_q <= 1'b1;
  always_comb if (!f_started_q) assume (!rst_ni);

  // Order and content: an entry chosen by the solver is followed from its push to its pop.
  logic                f_is_watched_q, f_choice, f_is_taken;
  logic [Width-1:0]    f_data_q;
  logic [LevelWidth:0] f_ahead_q;     // entries before it
  logic [1:0]          f_fetched;     // entries that have left the store
  // The index `count` entries behind the oldest.
  function automatic logic [PointerWidth-1:0] f_after(logic [LevelWidth:0] count);
    logic [LevelWidth+1:0] place = (LevelWidth + 2)'(read_q) + (LevelWidth + 2)'(count);
    return PointerWidth'(place >= (LevelWidth + 2)'(Depth) ? place - (LevelWidth + 2)'(Depth)
                                                           : place);
  endfunction

  assign f_is_taken = valid_o && ready_i;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      f_is_watched_q <= 1'b0;
      f_data_q       <= '0;
      f_ahead_q      <= '0;
    end else if (!f_is_watched_q) begin
      if (push && f_choice) begin
        f_is_watched_q <= 1'b1;
        f_data_q       <= data_i;
        f_ahead_q      <= (LevelWidth + 1)'(level_q) + (LevelWidth + 1)'(f_fetched)
                          - (LevelWidth + 1)'(f_is_taken);
      end
    end else if (f_is_taken) begin
      if (f_ahead_q == '0) f_is_watched_q <= 1'b0;
      else f_ahead_q <= f_ahead_q - 1'b1;
    end
  end

  if (InBlock) begin : gen_f_block
    assign f_fetched = 2'(valid_o) + 2'(gen_block.has_fetched_q);
    always_comb begin
      if (rst_ni && f_is_watched_q && gen_block.has_fetched_q
          && f_ahead_q == (LevelWidth + 1)'(valid_o)) begin
        assert (gen_block.fetched_q == f_data_q);
      end
    end
  end else begin : gen_f_direct
    assign f_fetched = '0;
  end

  always_comb begin
    if (rst_ni) begin
      assert (level_q <= LevelWidth'(Depth));
      assert (is_full_q == (level_q == LevelWidth'(Depth)));
      assert (has_entry_q == (level_q != '0));
      assert (read_q <= Last);
      assert (write_q <= Last);
      assert (f_after((LevelWidth + 1)'(level_q)) == write_q);
      if (f_is_watched_q) begin
        assert (f_ahead_q < (LevelWidth + 1)'(level_q) + (LevelWidth + 1)'(f_fetched));
        if (f_ahead_q >= (LevelWidth + 1)'(f_fetched)) begin
          assert (store[f_after(f_ahead_q - (LevelWidth + 1)'(f_fetched))] == f_data_q);
        end
        if (f_ahead_q == '0 && valid_o) assert (data_o == f_data_q);
      end
    end
  end
`endif

endmodule
