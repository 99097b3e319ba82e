// SPDX-License-Identifier: Apache-2.0
//
// Ethernet, IPv4 and UDP frames to requests: a beat of meta, the beats of the key and those of the
// value. A frame holds one request of memcached's binary protocol, with the datagram header of 8
// bytes in front of it or, as in the paper, without. A frame that is not exactly one request for
// this hardware is dropped whole, before any of it is passed on, and counted. A request with an
// unknown opcode, or with extras, a key or a value that its opcode does not have, is passed on
// without key and value, and the table answers it.
//
// A frame must be addressed to this hardware alone, and its source must be a station that an answer
// reaches: an answer to a group, a broadcast or ourselves would go to those who never asked.
//
// With header or without, with the extras of a SET or without, the key begins two bytes into a
// beat; so the beats up to that one are the head, and what follows goes through a window of 16
// bytes, 8 a cycle. The window empties while the next head comes in, so a frame takes a cycle for
// each of its beats and one for the verdict, and no more where a key and a value end in the midst
// of a beat: always less than on the wire, where 24 bytes stand between two frames.
//
// What is checked of a head is complete two beats before the head's end at least, for a head ends
// with 8 bytes that no check looks at. So the checks are made in two steps, each in front of
// registers, while the head still comes in: they cost no cycle and make no long path.

module request_parser
  import ht_pkg::*;
(
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [47:0] mac_i,          // ours, as are the next two
  input  logic [31:0] ip_i,
  input  logic [15:0] port_i,
  input  logic        has_header_i,   // of 8 bytes, in front of each request
  input  logic [31:0] now_i,

  input  logic        frame_valid_i,
  output logic        frame_ready_o,
  input  logic [63:0] frame_data_i,
  input  logic        frame_last_i,
  input  logic [15:0] frame_bytes_i,
  input  logic        frame_sound_i,

  output logic        meta_valid_o,
  input  logic        meta_ready_i,
  output request_t    meta_o,
  output logic        client_valid_o,  // with the request, for the response formatter
  input  logic        client_ready_i,
  output client_t     client_o,
  output logic        key_valid_o,
  input  logic        key_ready_i,
  output beat_t       key_o,
  output logic        val_valid_o,
  input  logic        val_ready_i,
  output beat_t       val_o,

  output logic        other_o,        // dropped: not for this hardware, or of no station
  output logic        unsound_o,      // dropped: a checksum is wrong
  output logic        malformed_o     // dropped: lengths that contradict each other
);

  localparam logic [31:0] LongestRelative = 32'd2_592_000;  // 30 days, in seconds
  localparam int unsigned HeadWords = 44;

  typedef enum logic [1:0] {StHead, StCheck, StBody, StSkip} state_e;
  state_e state_q;

  // The head, in words of two bytes, the first on the wire on top.
  logic [15:0] head_q [HeadWords];
  logic [15:0] word   [16];   // of the request
  logic [3:0]  beat_q, last_head;
  logic        is_ended_q;    // the frame's last beat was taken
  logic        is_short_q;    // and it was no whole head
  logic        has_type_q;    // but long enough to have an EtherType
  logic [15:0] bytes_q;
  logic        is_sound_q, take;
  logic [15:0] item_left_q, value_left_q, feed_left_q;

  for (genvar i = 0; i < 16; i++) begin : gen_word
    assign word[i] = has_header_i ? head_q[25+i] : head_q[21+i];
  end

  logic [7:0]  opcode, extras_bytes;
  logic [15:0] key_bytes, udp_bytes, ip_bytes, body_bytes;
  logic [31:0] expiry;
  logic        is_get, is_set, is_delete;
  assign opcode       = word[0][7:0];
  assign key_bytes    = word[1];
  assign extras_bytes = word[2][15:8];
  assign body_bytes   = word[5];   // word[4] must be 0
  assign ip_bytes     = head_q[8];
  assign udp_bytes    = head_q[19];
  assign is_get       = opcode == OpGet || opcode == OpGetQ || opcode == OpGetK
                        || opcode == OpGetKQ;
  assign is_set       = opcode == OpSet || opcode == OpSetQ;
  assign is_delete    = opcode == OpDelete || opcode == OpDeleteQ;

  // The first step of the checks. Sums are a bit wider than lengths: a datagram of 65,530 bytes is
  // none in a packet of 14.
  logic        is_extended_q, is_stranger_q, is_elsewhere_q, is_forged_q, has_magic_q, is_set_q,
               is_known_q, is_plain_q, is_vast_q, has_extras_q, has_key_q, is_getk_q;
  logic [47:0] to_mac, from_mac;
  logic [31:0] from_ip;
  assign to_mac   = {head_q[0], head_q[1], head_q[2]};
  assign from_mac = {head_q[3], head_q[4], head_q[5]};
  assign from_ip  = {head_q[13], head_q[14]};
  logic [16:0] datagram_bytes_q, packet_bytes_q, needed_bytes_q, named_bytes_q;
  logic [15:0] items_bytes_q;
  always_ff @(posedge clk_i) begin
    is_stranger_q <= head_q[7][15:8] != 8'h45 || (head_q[10] & 16'hbfff) != '0
        || head_q[11][7:0] != 8'd17 || {head_q[15], head_q[16]} != ip_i || head_q[18] != port_i;
    is_elsewhere_q <= to_mac != mac_i;
    // A group's Ethernet address, or an IPv4 address of no host: of this network (0), of the
    // loopback (127), of a group or reserved (224 and above, the broadcast among them).
    is_forged_q <= from_mac[40] || from_mac == mac_i || from_ip == ip_i || head_q[17] == '0
        || from_ip[31:24] == 8'd0 || from_ip[31:24] == 8'd127 || from_ip[31:29] == 3'b111;
    is_getk_q     <= opcode == OpGetK || opcode == OpGetKQ;
    has_magic_q   <= word[0][15:8] == 8'h80
        && (!has_header_i || (head_q[22] == '0 && head_q[23] == 16'd1));
    is_set_q      <= is_set;
    is_plain_q    <= opcode == OpNoop || opcode == OpVersion;
    is_known_q    <= is_get || is_set || is_delete || opcode == OpNoop || opcode == OpVersion;
    is_extended_q <= extras_bytes == 8'd8;
    has_extras_q  <= extras_bytes != '0;
    has_key_q     <= key_bytes != '0;
    is_vast_q     <= word[4] != '0;
    datagram_bytes_q <= 17'(body_bytes) + (has_header_i ? 17'd40 : 17'd32);
    packet_bytes_q   <= 17'(udp_bytes) + 17'd20;
    needed_bytes_q   <= 17'(ip_bytes) + 17'd14;
    named_bytes_q    <= 17'(extras_bytes) + 17'(key_bytes);
    items_bytes_q    <= body_bytes - 16'(extras_bytes);
  end

  // The second step: the verdict, and the lengths of key and value. What the table refuses for its
  // opcode or its shape is passed on without either.
  logic        is_fine_q, has_feed_q, is_misshapen, is_misshapen_q, has_items, wants_key_q,
               has_terms;
  assign is_misshapen = is_set_q ? !is_extended_q
      : is_known_q && (has_extras_q || named_bytes_q != 17'(body_bytes)
                       || (is_plain_q && has_key_q));
  assign has_items    = is_known_q && !is_misshapen;
  logic [15:0] first_bytes_q, value_bytes_q, feed_bytes_q;
  logic [7:0]  klen_q;
  always_ff @(posedge clk_i) begin
    is_fine_q <= has_magic_q && !is_vast_q && 17'(udp_bytes) == datagram_bytes_q
        && 17'(ip_bytes) == packet_bytes_q && 17'(bytes_q) >= needed_bytes_q
        && named_bytes_q <= 17'(body_bytes);
    is_misshapen_q <= is_misshapen;
    klen_q        <= !has_items ? '0 : key_bytes > 16'd255 ? 8'd255 : key_bytes[7:0];
    // No key of the table is as long as 255 bytes.
    wants_key_q   <= has_items && is_getk_q && has_key_q && key_bytes < 16'd255;
    first_bytes_q <= !has_items ? '0 : has_key_q ? key_bytes : items_bytes_q;
    value_bytes_q <= has_items && is_set_q ? body_bytes - named_bytes_q[15:0] : '0;
    has_feed_q    <= has_items && items_bytes_q > 16'd6;
    feed_bytes_q  <= items_bytes_q - 16'd6;
  end
  assign last_head = 4'd8 + 4'(has_header_i) + 4'(is_extended_q);

  // The verdict's cycle.
  logic is_other, is_fine, is_dropped, has_room, go;
  logic [3:0] wanted_q;       // bytes of the item's next beat; none: the window is done
  assign is_other    = (has_type_q && head_q[6] != 16'h0800)
      || (!is_short_q && (is_stranger_q || is_elsewhere_q || is_forged_q));
  assign is_fine     = !is_short_q && is_fine_q;
  assign is_dropped  = is_other || !is_sound_q || !is_fine;
  assign other_o     = state_q == StCheck && is_other;
  assign unsound_o   = state_q == StCheck && !is_other && !is_short_q && !is_sound_q;
  assign malformed_o = state_q == StCheck && !is_other && (is_short_q || is_sound_q) && !is_fine;
  // The request before it has left the window.
  assign has_room       = wanted_q == '0 && (!meta_valid_o || meta_ready_i);
  assign client_valid_o = state_q == StCheck && !is_dropped && has_room;
  assign go             = client_valid_o && client_ready_i;

  assign client_o = '{mac: from_mac, ip: from_ip, port: head_q[17], frame_id: head_q[21],
                      opaque: {word[6], word[7]}, klen: klen_q, wants_key: wants_key_q};

  assign has_terms = is_set_q && !is_misshapen_q;
  always_comb begin
    expiry = {word[14], word[15]};
    if (expiry != '0 && expiry <= LongestRelative) expiry = now_i + expiry;
  end

  always_ff @(posedge clk_i) begin
    if (!meta_valid_o || meta_ready_i) begin
      meta_o <= '{id: '0, opcode: opcode, klen: klen_q, vlen: 24'(value_bytes_q),
                  flags: has_terms ? {word[12], word[13]} : '0, expiry: has_terms ? expiry : '0,
                  has_cas: {word[8], word[9], word[10], word[11]} != '0,
                  is_misshapen: is_misshapen_q};
    end
  end

  // Items: the key, then the value. They leave the window for a queue, so that nothing in front of
  // it waits for the stage below within a cycle.
  logic [127:0] window_q, shifted;
  logic [47:0]  rest_q;   // of the head's last beat
  logic [63:0]  item_data;
  logic [7:0]   item_keep;
  logic [4:0]   count_q, count_after, left_in_window;
  logic [3:0]   wanted_after;
  logic         is_value_q, is_enough, is_out, out_room, is_last, take_head, take_body;

  function automatic logic [3:0] beat_of(logic [15:0] bytes);
    return bytes >= 16'd8 ? 4'd8 : bytes[3:0];
  endfunction

  assign is_last      = item_left_q <= 16'd8;
  assign is_enough    = wanted_q != '0 && count_q >= 5'(wanted_q);
  assign is_out       = is_enough && out_room;
  assign wanted_after = is_last ? beat_of(value_left_q)
      : item_left_q >= 16'd16 ? 4'd8 : {1'b0, item_left_q[2:0]};

  // An item is padded with zeros.
  assign item_keep = ~(8'hff << wanted_q);
  for (genvar i = 0; i < 8; i++) begin : gen_byte
    assign item_data[8*i+:8] = item_keep[i] ? window_q[8*i+:8] : '0;
  end
  logic out_valid, out_ready, out_is_value, out_last;
  logic [63:0] out_data;
  logic [7:0]  out_keep;
  fifo #(.Width(74), .Depth(2)) u_out (
    .clk_i, .rst_ni, .valid_i(is_enough), .ready_o(out_room),
    .data_i({is_value_q, is_last, item_keep, item_data}),
    .valid_o(out_valid), .ready_i(out_ready),
    .data_o({out_is_value, out_last, out_keep, out_data}), .level_o()
  );
  assign out_ready   = out_is_value ? val_ready_i : key_ready_i;
  assign key_valid_o = out_valid && !out_is_value;
  assign val_valid_o = out_valid && out_is_value;
  assign key_o       = '{data: out_data, keep: out_keep, last: out_last};
  assign val_o       = key_o;

  assign count_after    = count_q - 5'(wanted_q);
  assign left_in_window = is_out ? count_after : count_q;
  assign shifted        = is_out ? window_q >> {wanted_q, 3'b0} : window_q;

  always_comb begin
    unique case (state_q)
      StHead:  frame_ready_o = 1'b1;
      StBody:  frame_ready_o = is_out ? count_after <= 5'd8 : count_q <= 5'd8;
      StSkip:  frame_ready_o = 1'b1;
      default: frame_ready_o = 1'b0;
    endcase
  end
  assign take      = frame_valid_i && frame_ready_o;
  assign take_head = frame_valid_i && state_q == StHead;
  assign take_body = state_q == StBody && take;

  always_ff @(posedge clk_i) begin
    if (take_head) begin
      for (int unsigned i = 0; i < 4; i++) begin
        head_q[{beat_q, 2'(i)}] <= {frame_data_i[16*i+:8], frame_data_i[16*i+8+:8]};
      end
      rest_q     <= frame_data_i[63:16];
      bytes_q    <= frame_bytes_i;
      is_sound_q <= frame_sound_i;
    end
    if (go) window_q <= {80'b0, rest_q};
    else if (take_body) begin
      window_q <= shifted | (128'(frame_data_i) << {left_in_window, 3'b0});
    end else window_q <= shifted;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q      <= StHead;
      beat_q       <= '0;
      is_ended_q   <= 1'b0;
      is_short_q   <= 1'b0;
      has_type_q   <= 1'b0;
      meta_valid_o <= 1'b0;
      count_q      <= '0;
      item_left_q  <= '0;
      wanted_q     <= '0;
      value_left_q <= '0;
      feed_left_q  <= '0;
      is_value_q   <= 1'b0;
    end else begin
      meta_valid_o <= go || (meta_valid_o && !meta_ready_i);
      if (take) is_ended_q <= frame_last_i;
      unique case (state_q)
        StHead: begin
          if (take_head) begin
            beat_q <= beat_q + 1'b1;
            if (frame_last_i || (beat_q >= 4'd8 && beat_q == last_head)) begin
              state_q    <= StCheck;
              is_short_q <= beat_q < 4'd8 || beat_q != last_head;
              has_type_q <= beat_q != '0;
              beat_q     <= '0;
            end
          end
        end
        StCheck: begin
          if (is_dropped) state_q <= is_ended_q ? StHead : StSkip;
          else if (go) begin
            state_q <= is_ended_q ? StHead : has_feed_q ? StBody : StSkip;
          end
        end
        StBody: begin
          if (take) begin
            feed_left_q <= feed_left_q - 16'd8;
            if (frame_last_i) state_q <= StHead;
            else if (feed_left_q <= 16'd8) state_q <= StSkip;
          end
        end
        default: if (take && frame_last_i) state_q <= StHead;
      endcase
      if (go) begin
        count_q      <= 5'd6;
        is_value_q   <= !has_key_q;
        item_left_q  <= first_bytes_q;
        wanted_q     <= beat_of(first_bytes_q);
        value_left_q <= has_key_q ? value_bytes_q : '0;
        feed_left_q  <= feed_bytes_q;
      end else begin
        count_q <= left_in_window + (take_body ? 5'd8 : '0);
        if (is_out) begin
          item_left_q <= is_last ? value_left_q : item_left_q - 16'd8;
          wanted_q    <= wanted_after;
          if (is_last) begin
            is_value_q   <= 1'b1;
            value_left_q <= '0;
          end
        end
      end
    end
  end

endmodule
